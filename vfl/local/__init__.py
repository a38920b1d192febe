"""A whole run on this machine: in processes, or in one."""
