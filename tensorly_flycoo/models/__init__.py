"""From factors to an answer: choose, judge and use the CP model of a sparse tensor."""
