use super::*;
use clap::CommandFactory;

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn usage_errors_are_64_and_help_is_0() {
    assert_eq!(
        Cli::read(["palisade", "run", "--no-such"]).err(),
        Some(exit::USAGE)
    );
    assert_eq!(Cli::read(["palisade"]).err(), Some(exit::USAGE));
    assert_eq!(
        Cli::read(["palisade", "run", "--help"]).err(),
        Some(exit::OK)
    );
}
