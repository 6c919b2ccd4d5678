"""The methods for singular vectors that work for a sparse tensor."""

from ..checks import densify_error

#: Both find only the leading singular vectors.
SVDS = ("truncated_svd", "randomized_svd")


def check_svd(svd: object, operation: str, shape: tuple[int, ...]) -> None:
    """Refuse a TensorLy method that needs more than the leading singular vectors.

    Raises
    ------
    DensifyError
        If `svd` is neither "truncated_svd" nor "randomized_svd".
    """
    if svd not in SVDS:
        instead = f"expected one of {SVDS}, which find only the leading singular vectors"
        raise densify_error(f"{operation} with svd={svd!r}", shape, instead)
