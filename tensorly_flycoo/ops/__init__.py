"""Operations on sparse tensors, one a file."""
