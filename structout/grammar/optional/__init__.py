"""Other grammar engines, for requests that name them: peers in benches, judges in
tests. Each enforces what it enforces; structout adds nothing and checks nothing."""
