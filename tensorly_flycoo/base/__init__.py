"""What every room uses: checks and their errors, array modules, devices, reports, versions."""
