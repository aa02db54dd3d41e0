"""Search for the best subnets of a supernet under a budget (AutoFormer, Chen et al. 2021).

`search.py` searches a run of the task `supernet`, `evolution.py` proposes subnets, `inherited.py`
judges them by the weights they inherit, and `extract.py` cuts one out as a run of its own.
"""
