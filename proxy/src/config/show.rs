//! The effective settings, as `palisade check` prints them: TOML with the place that each came from; the routes follow as
//! comments.

use std::fmt::{self, Write as _};

use super::{ConfigErrors, Leases, Place, Raw, Settings, Sources, keys};

impl Settings {
    /// The effective settings and the routes. Files with secrets are named, never read out.
    pub fn show(sources: &Sources) -> Result<(Self, String), ConfigErrors> {
        let settings = Self::load(sources)?;
        // What could be read a moment ago can be read again, or its error was told by `load`.
        let typed = sources.read(&mut Vec::new());
        let mut shown = String::new();
        let mut section = "";
        for key in keys::KEYS {
            let (in_section, name) = key.name.split_once('.').unwrap_or(("", key.name));
            if in_section != section {
                section = in_section;
                let _ = writeln!(shown, "\n[{section}]");
            }
            let given = typed.values.get(key.name);
            let value =
                given.map_or_else(|| key.default.map(text), |given| Some(raw(&given.value)));
            let place = given.map_or(&Place::Default, |given| &given.place);
            let _ = match value {
                Some(value) if unused(&settings, section) => {
                    writeln!(shown, "# {name} = {value}  # not used")
                }
                Some(value) => writeln!(shown, "{name} = {value}  # {place}"),
                None => writeln!(shown, "# {name}: not set"),
            };
        }
        let _ = writeln!(shown, "\n{}", Routes(&settings));
        for warning in &settings.warnings {
            let _ = writeln!(shown, "# warning: {warning}");
        }
        Ok((settings, shown))
    }
}

/// Sections that must not stand in a file of these settings.
fn unused(settings: &Settings, section: &str) -> bool {
    match section {
        "replicas" => settings.replicas.is_none(),
        "etcd" => !matches!(settings.leases, Leases::Etcd { .. }),
        _ => false,
    }
}

fn text(text: &str) -> String {
    match text {
        "true" | "false" => text.to_owned(),
        _ if !text.is_empty() && text.len() < 19 && text.bytes().all(|b| b.is_ascii_digit()) => {
            text.to_owned()
        }
        _ => toml::Value::String(text.to_owned()).to_string(),
    }
}

fn raw(value: &Raw) -> String {
    match value {
        Raw::Text(value) => text(value),
        Raw::Number(number) => number.to_string(),
        Raw::Switch(switch) => switch.to_string(),
        Raw::List(list) => toml::Value::from(list.clone()).to_string(),
        Raw::Table(_) => "{ }".into(),
    }
}

struct Routes<'a>(&'a Settings);

impl fmt::Display for Routes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.routes.fmt(f)
    }
}
