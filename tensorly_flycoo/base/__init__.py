"""Tools of every room: checks and their errors, array modules, devices, reports, versions."""
