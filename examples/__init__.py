"""Things to start from: networks of one's own, and a package of plug-ins."""
