"""xgrammar, for requests that name it. It enforces what it enforces; structout adds
nothing and checks nothing."""
