//! Every setting as a flag and as a variable of the environment, made from the table of keys.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};
use std::path::PathBuf;

use super::{Sources, keys};

/// `--config` and a flag for each setting.
#[derive(Clone, Debug, Default)]
pub struct SettingsArgs {
    /// What was given.
    pub sources: Sources,
}

/// `--config` and `--state`: enough to find a running proxy.
#[derive(Clone, Debug, Default)]
pub struct StateArgs {
    /// What was given.
    pub sources: Sources,
}

fn config_arg() -> Arg {
    Arg::new("config")
        .long("config")
        .short('c')
        .value_name("FILE")
        .env("PALISADE_CONFIG")
        .value_parser(clap::value_parser!(PathBuf))
        .help("The file with the settings (TOML)")
}

fn key_args(wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = Arg> {
    keys::all()
        .filter(move |(key, _)| wanted(key.name))
        .map(|(key, names)| {
            let arg = Arg::new(key.name)
                .long(names.flag.as_str())
                .env(names.env.as_str())
                .value_name(key.form)
                .help(key.help)
                .help_heading(
                    key.name
                        .split_once('.')
                        .map_or("Settings", |(section, _)| section),
                );
            match key.default {
                // The default is told, not set: only the check may fill it in, or a flag's default would beat the file.
                Some(default) => arg.help(format!("{} [default: {default}]", key.help)),
                None => arg,
            }
        })
}

fn sources(matches: &mut ArgMatches) -> Sources {
    let mut sources = Sources {
        unknown_env: unknown_env(
            std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()),
        ),
        file: matches.get_one::<PathBuf>("config").cloned(),
        ..Sources::default()
    };
    for key in keys::KEYS {
        // A command may take only some of the keys.
        let Ok(Some(text)) = matches.try_get_one::<String>(key.name) else {
            continue;
        };
        match matches.value_source(key.name) {
            Some(ValueSource::EnvVariable) if text.is_empty() => {}
            Some(ValueSource::EnvVariable) => {
                sources.env.insert(key.name, text.clone());
            }
            _ => {
                sources.flags.insert(key.name, text.clone());
            }
        }
    }
    sources
}

/// Variables that were probably meant for settings. Others are no error: Kubernetes makes `PALISADE_SERVICE_HOST` and
/// more out of a service's name, and `palisade-lease` has its own.
fn unknown_env(names: impl Iterator<Item = String>) -> Vec<String> {
    const PREFIX: &str = "PALISADE_";
    let known = |meant: &str| keys::all().any(|(_, names)| names.env == meant);
    let near = |meant: &str| {
        let bare = keys::all().filter_map(|(_, names)| names.env.strip_prefix(PREFIX));
        keys::nearest(meant.strip_prefix(PREFIX)?, bare)
    };
    names
        .filter(|name| !known(name))
        .filter_map(|name| {
            let near = near(&name)?;
            Some(format!(
                "the variable {name} is no setting and is not looked at; did you mean {PREFIX}{near}?"
            ))
        })
        .collect()
}

impl Args for SettingsArgs {
    fn augment_args(command: Command) -> Command {
        command.arg(config_arg()).args(key_args(|_| true))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingsArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            sources: sources(matches),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for StateArgs {
    fn augment_args(command: Command) -> Command {
        command
            .arg(config_arg())
            .args(key_args(|name| name == "state"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for StateArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            sources: sources(matches),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::unknown_env;

    #[test]
    fn slips_in_the_environment_are_told() {
        let told = |name: &str| unknown_env([name.to_owned()].into_iter());
        assert_eq!(
            told("PALISADE_FENCE_SETLE"),
            [
                "the variable PALISADE_FENCE_SETLE is no setting and is not looked at; did you mean PALISADE_FENCE_SETTLE?"
            ]
        );
        for other in [
            "PALISADE_FENCE_SETTLE",
            "PALISADE_PORT",
            "PALISADE_SERVICE_HOST",
            "PALISADE_PORT_8080_TCP_ADDR",
            "PALISADE_TTL",
            "PALISADE_CONFIG",
            "HOME",
        ] {
            assert_eq!(told(other), Vec::<String>::new(), "{other}");
        }
    }
}
