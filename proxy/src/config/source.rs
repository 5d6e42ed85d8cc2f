//! What was given: by the file, the environment and the flags, each value with the place that it came from.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::keys::{self, ROUTE_KEYS};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nobody gave it.
    Default,
    /// A line of a file, from 1.
    File(Arc<Path>, usize),
    /// A variable of the environment.
    Env(String),
    /// A flag, with its dashes.
    Flag(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One thing that is wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{message}. {remedy}", Prefix(place), Named(key))]
pub struct ConfigError {
    /// Where it stands; `Default` when it stands nowhere.
    pub place: Place,
    /// The setting, as in the file: `fence.settle`. Empty when it is about a whole file.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

struct Prefix<'a>(&'a Place);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Place::Default => Ok(()),
            place => write!(f, "{place}: "),
        }
    }
}

struct Named<'a>(&'a str);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            key => write!(f, "{key}: "),
        }
    }
}

/// Everything that is wrong with the settings, in the order in which it was found; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// A value as typed.
#[derive(Clone, Debug, PartialEq)]
pub enum Raw {
    /// A string; everything from flags and the environment is one.
    Text(String),
    /// A whole number.
    Number(i64),
    /// A boolean.
    Switch(bool),
    /// A list of strings.
    List(Vec<String>),
    /// A table of strings.
    Table(Vec<(String, String)>),
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// As typed.
    pub value: Raw,
    /// Where.
    pub place: Place,
}

/// One `[[route]]` as typed.
#[derive(Clone, Debug)]
pub struct RouteGiven {
    /// The line of its header.
    pub place: Place,
    /// Its keys.
    pub keys: BTreeMap<String, Given>,
}

/// Where settings come from, before anything is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The main file, if there is one.
    pub file: Option<PathBuf>,
    /// What the flags say: the key's name and the text.
    pub flags: BTreeMap<&'static str, String>,
    /// What the environment says: the key's name and the text.
    pub env: BTreeMap<&'static str, String>,
    /// Variables of the environment that look like settings and are none: a slip is told, and changes nothing.
    pub unknown_env: Vec<String>,
}

/// What was given in all, flag over environment over file.
#[derive(Clone, Debug, Default)]
pub struct Typed {
    /// By the key's name.
    pub values: BTreeMap<&'static str, Given>,
    /// The routes, in their order.
    pub routes: Vec<RouteGiven>,
}

impl Sources {
    /// Only a file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self {
            file: Some(path.into()),
            ..Self::default()
        }
    }

    /// Reads everything. Errors are added to the list; what could be read comes back all the same.
    pub fn read(&self, errors: &mut Vec<ConfigError>) -> Typed {
        let mut typed = Typed::default();
        if let Some(path) = &self.file {
            read_file(path, false, &mut typed, errors);
        }
        for (key, names) in keys::all() {
            let env = self
                .env
                .get(key.name)
                .map(|text| (text, Place::Env(names.env.clone())));
            let flag = self
                .flags
                .get(key.name)
                .map(|text| (text, Place::Flag(format!("--{}", names.flag))));
            if let Some((text, place)) = flag.or(env) {
                let value = Raw::Text(text.clone());
                typed.values.insert(key.name, Given { value, place });
            }
        }
        self.read_routes_file(&mut typed, errors);
        typed
    }

    /// Routes of a file of their own. Its path counts from the folder of the file that names it.
    fn read_routes_file(&self, typed: &mut Typed, errors: &mut Vec<ConfigError>) {
        let Some(Given {
            value: Raw::Text(path),
            place,
        }) = typed.values.get("routes_file").cloned()
        else {
            return;
        };
        if let Some(route) = typed.routes.first() {
            errors.push(ConfigError {
                place: route.place.clone(),
                key: "route".into(),
                message: format!("there are routes here and in {path}"),
                remedy: "Keep them all in one of the two files: their order counts.".into(),
            });
            return;
        }
        let base = match &place {
            Place::File(file, _) => file.parent().unwrap_or(Path::new("")).to_owned(),
            _ => PathBuf::new(),
        };
        read_file(&base.join(path), true, typed, errors);
    }
}

fn read_file(path: &Path, routes_only: bool, typed: &mut Typed, errors: &mut Vec<ConfigError>) {
    let shared: Arc<Path> = path.into();
    let at = |line| Place::File(shared.clone(), line);
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            errors.push(ConfigError {
                place: at(1),
                key: String::new(),
                message: format!("the file can't be read: {error}"),
                remedy: "Check the path and its permissions.".into(),
            });
            return;
        }
    };
    let line = |offset: usize| {
        1 + text.as_bytes()[..offset.min(text.len())]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
    };
    let table = match DeTable::parse(&text) {
        Ok(table) => table,
        Err(error) => {
            errors.push(ConfigError {
                place: at(error.span().map_or(1, |span| line(span.start))),
                key: String::new(),
                message: format!(
                    "the file is no TOML: {}",
                    error.message().trim_end_matches('.')
                ),
                remedy: "Correct the line.".into(),
            });
            return;
        }
    };
    let mut reader = FileReader {
        at: &at,
        line: &line,
        routes_only,
        typed,
        errors,
    };
    reader.table("", table.get_ref());
}

struct FileReader<'a> {
    at: &'a dyn Fn(usize) -> Place,
    line: &'a dyn Fn(usize) -> usize,
    routes_only: bool,
    typed: &'a mut Typed,
    errors: &'a mut Vec<ConfigError>,
}

impl FileReader<'_> {
    fn place<T>(&self, of: &Spanned<T>) -> Place {
        (self.at)((self.line)(of.span().start))
    }

    fn error(
        &mut self,
        place: Place,
        key: &str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.errors.push(ConfigError {
            place,
            key: key.into(),
            message: message.into(),
            remedy: remedy.into(),
        });
    }

    fn table(&mut self, section: &str, table: &DeTable<'_>) {
        // The map is sorted by name; errors are wanted in the order of the file.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let name = match section {
                "" => key.get_ref().to_string(),
                section => format!("{section}.{}", key.get_ref()),
            };
            self.entry(&name, self.place(key), value);
        }
    }

    fn entry(&mut self, name: &str, place: Place, value: &Spanned<DeValue<'_>>) {
        if name == "route" {
            return self.routes(place, value.get_ref());
        }
        if self.routes_only {
            return self.error(
                place,
                name,
                "only [[route]] tables may stand in a file of routes",
                "Move it to the main file.",
            );
        }
        let prefix = format!("{name}.");
        let is_section = keys::KEYS.iter().any(|key| key.name.starts_with(&prefix));
        match (value.get_ref(), keys::find(name)) {
            (DeValue::Table(table), None) if is_section => self.table(name, table),
            (value, Some(key)) => match raw(value) {
                Some(value) => {
                    self.typed.values.insert(key.name, Given { value, place });
                }
                None => self.error(
                    place,
                    name,
                    "the value is of no kind that a setting has",
                    format!("Write {}.", key.form),
                ),
            },
            (_, None) => {
                let known = keys::KEYS
                    .iter()
                    .flat_map(|key| {
                        [
                            Some(key.name),
                            key.name.split_once('.').map(|(section, _)| section),
                        ]
                    })
                    .flatten()
                    .chain(["route"]);
                let remedy = match keys::nearest(name, known) {
                    Some(near) => format!("Did you mean {near}?"),
                    None => "Remove it; `palisade run --help` names every setting.".into(),
                };
                self.error(place, name, "there is no such setting", remedy);
            }
        }
    }

    fn routes(&mut self, place: Place, value: &DeValue<'_>) {
        let DeValue::Array(routes) = value else {
            return self.error(
                place,
                "route",
                "routes are a list of tables",
                "Write [[route]], with two brackets.",
            );
        };
        for route in routes {
            let place = self.place(route);
            let DeValue::Table(table) = route.get_ref() else {
                self.error(
                    place,
                    "route",
                    "a route is a table",
                    "Write [[route]], with two brackets.",
                );
                continue;
            };
            self.route(place, table);
        }
    }

    fn route(&mut self, place: Place, table: &DeTable<'_>) {
        let mut keys = BTreeMap::new();
        for (key, value) in table {
            let name = key.get_ref();
            let place = self.place(key);
            if !ROUTE_KEYS.contains(&name.as_ref()) {
                let remedy = match keys::nearest(name, ROUTE_KEYS.into_iter()) {
                    Some(near) => format!("Did you mean {near}?"),
                    None => format!("A route has {}.", ROUTE_KEYS.join(", ")),
                };
                self.error(
                    place,
                    &format!("route.{name}"),
                    "a route has no such key",
                    remedy,
                );
                continue;
            }
            match raw(value.get_ref()) {
                Some(value) => {
                    keys.insert(name.to_string(), Given { value, place });
                }
                None => self.error(
                    place,
                    &format!("route.{name}"),
                    "the value is of no kind that a route's key has",
                    "Write a string, true or false, or a list or table of strings.",
                ),
            }
        }
        self.typed.routes.push(RouteGiven { place, keys });
    }
}

fn raw(value: &DeValue<'_>) -> Option<Raw> {
    let text = |value: &Spanned<DeValue<'_>>| value.get_ref().as_str().map(str::to_owned);
    Some(match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Boolean(switch) => Raw::Switch(*switch),
        DeValue::Integer(number) if number.radix() == 10 => {
            Raw::Number(number.as_str().parse().ok()?)
        }
        DeValue::Array(list) => Raw::List(list.iter().map(text).collect::<Option<_>>()?),
        DeValue::Table(table) => {
            let mut pairs = table.iter().collect::<Vec<_>>();
            pairs.sort_by_key(|(key, _)| key.span().start);
            let pair = |(key, value): (&Spanned<_>, _)| {
                Some((ToString::to_string(key.get_ref()), text(value)?))
            };
            Raw::Table(pairs.into_iter().map(pair).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}
