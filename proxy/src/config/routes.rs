//! Routes, from what was typed to the table.

use http::Method;
use std::sync::Arc;

use super::{ConfigError, Raw, RouteGiven, check::Reader};
use crate::route::{self, Paths, RouteTable, Rule};

impl Reader<'_> {
    pub(super) fn routes(&mut self) -> Arc<RouteTable> {
        let scope = self.text("scope");
        if let Err(why) = route::check_scope_name(&scope) {
            self.error(
                "scope",
                format!("{scope:?} is no scope's name: {why}"),
                "Write a lease's name.",
            );
            return RouteTable::single("default").into();
        }
        if self.typed.routes.is_empty() {
            return RouteTable::single(&scope).into();
        }
        if self.given("scope").is_some() {
            self.warnings
                .push("scope is not used: there are routes".into());
        }
        let rules = self
            .typed
            .routes
            .iter()
            .map(|given| self.rule(given))
            .collect();
        match RouteTable::new(rules) {
            Ok(table) => table.into(),
            Err(error) => {
                let given = &self.typed.routes[error.rule];
                let place = given
                    .keys
                    .get(error.key)
                    .map_or(&given.place, |key| &key.place);
                self.errors.push(ConfigError {
                    place: place.clone(),
                    key: format!("route.{}", error.key),
                    message: error.message,
                    remedy: error.remedy,
                });
                RouteTable::single("default").into()
            }
        }
    }

    fn rule(&mut self, given: &RouteGiven) -> Rule {
        let mut route = RouteReader {
            given,
            errors: &mut self.errors,
        };
        Rule {
            path: route.text("path").unwrap_or_default(),
            scope: route.text("scope"),
            paths: match route.text("paths").as_deref() {
                None | Some("tree") => Paths::Tree,
                Some("opaque") => Paths::Opaque,
                Some(_) => {
                    route.error(
                        "paths",
                        "this is no way to read paths",
                        "Write \"tree\" or \"opaque\".",
                    );
                    Paths::Tree
                }
            },
            methods: route.methods("methods"),
            reads: route.methods("reads"),
            writes: route.methods("writes"),
            query: route.query(),
            deny: route.deny(),
            place: given.place.to_string(),
        }
    }
}

struct RouteReader<'a> {
    given: &'a RouteGiven,
    errors: &'a mut Vec<ConfigError>,
}

impl RouteReader<'_> {
    fn error(&mut self, key: &str, message: impl Into<String>, remedy: impl Into<String>) {
        let place = self
            .given
            .keys
            .get(key)
            .map_or(&self.given.place, |given| &given.place);
        self.errors.push(ConfigError {
            place: place.clone(),
            key: format!("route.{key}"),
            message: message.into(),
            remedy: remedy.into(),
        });
    }

    fn text(&mut self, key: &str) -> Option<String> {
        match &self.given.keys.get(key)?.value {
            Raw::Text(text) => Some(text.clone()),
            _ => {
                self.error(key, "the value is no string", "Write it in quotes.");
                None
            }
        }
    }

    fn methods(&mut self, key: &str) -> Vec<Method> {
        let names = match self.given.keys.get(key).map(|given| &given.value) {
            None => return Vec::new(),
            Some(Raw::List(names)) => names.clone(),
            Some(_) => {
                self.error(
                    key,
                    "the value is no list",
                    "Write a list of methods, such as [\"POST\"].",
                );
                return Vec::new();
            }
        };
        let mut methods = Vec::new();
        for name in names {
            match Method::from_bytes(name.as_bytes()) {
                Ok(method) if !name.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                    methods.push(method);
                }
                _ => self.error(
                    key,
                    format!("{name:?} is no method"),
                    "Methods are words in capitals, such as \"POST\" (RFC 9110, section 9.1).",
                ),
            }
        }
        methods
    }

    fn query(&mut self) -> Vec<(String, String)> {
        match self.given.keys.get("query").map(|given| &given.value) {
            None => Vec::new(),
            Some(Raw::Table(pairs)) => pairs.clone(),
            Some(_) => {
                self.error(
                    "query",
                    "the value is no table",
                    "Write conditions, such as { delete = \"*\" }.",
                );
                Vec::new()
            }
        }
    }

    fn deny(&mut self) -> bool {
        match self.given.keys.get("deny").map(|given| &given.value) {
            None => false,
            Some(Raw::Switch(deny)) => *deny,
            Some(_) => {
                self.error(
                    "deny",
                    "the value is neither true nor false",
                    "Write true or false.",
                );
                false
            }
        }
    }
}
