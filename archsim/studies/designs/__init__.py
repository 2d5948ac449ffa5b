"""Two designs side by side: what differs in their specification, and in time, traffic, energy and price."""
