"""Tells how sure a result is. It has uncertain numbers, the worlds that are drawn from them, and what follows for a
headline.
"""
