"""Data that stays in FFCV files.

format.py is what writer.py and reader.py share; convert.py turns data sets into files; data_set.py reads
`--dataset beton`; source.py and feed.py make its batches, decoded by FFCV; install.py knows the optional
package. The other modules reach this room through `data.source_of` and the registry (pyproject.toml).
"""
