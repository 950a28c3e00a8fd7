"""What several tests share: cases, builds, judges, and processes of a kind."""
