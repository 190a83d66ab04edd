"""What it costs to look: reads of operators, and open dashboards."""
