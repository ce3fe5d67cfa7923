"""What replay and training draw their reports with: charts, tables, pages, and a progress line."""
