"""The algorithms, one a file; files with an underscore hold what several of them share."""
