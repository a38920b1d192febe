"""The `cafe` command."""


def main() -> None:
    """Run the command, with our own packages before files of the working folder that have their names."""
    from vfl.packages import import_ours, search_working_folder_last

    search_working_folder_last()
    import_ours()
    from vfl.cli.app import run_command

    run_command()
