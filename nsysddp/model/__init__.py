"""What the data is: names, units, errors, intervals, kernel classes, tables, the run, results."""
