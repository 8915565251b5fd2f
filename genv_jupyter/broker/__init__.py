"""The one process that decides: nothing is given twice because nobody else gives."""
