"""Operations on sparse tensors, one per file."""
