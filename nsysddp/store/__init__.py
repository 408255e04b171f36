"""Where do results stay, and how did a metric move over runs: the results database and its trends."""
