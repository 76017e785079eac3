"""fedlib: federated learning across domains. One loop, one complete base method, small differences."""
__version__ = "0.1.0"
