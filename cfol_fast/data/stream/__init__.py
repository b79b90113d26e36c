"""Folders of image files that are decoded while a run goes on, without a conversion: `--source stream`.

index.py is the list of the files, kept beside the data; data_set.py reads a data set as such lists; source.py
and feed.py make its batches; choice.py decides for `--source auto`. The other modules reach this room through
`data.source_of` and the readers (pyproject.toml).
"""
