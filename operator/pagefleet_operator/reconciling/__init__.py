"""One pass over one service: observe, plan, execute, report."""
