//! Lines of JSON, as tracing-subscriber has them. Those of the access log by a shorter way: its formatter looks at each piece of a line, thirty or more,
//! whether that is UTF-8, and so a line costs as much as all else of its request.

use crate::forward::ACCESS_LOG;
use serde::ser::{SerializeMap, Serializer as _};
use std::fmt;
use tracing::{Event, Subscriber};
use tracing_serde::{AsSerde, SerdeMapVisitor};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Json, Writer},
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// Room for most lines.
const LINE: usize = 512;

/// Formats events.
pub(super) struct JsonLines(Format<Json>);

impl JsonLines {
    pub(super) fn new() -> Self {
        Self(tracing_subscriber::fmt::format().json().flatten_event(true))
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if event.metadata().target() != ACCESS_LOG {
            return self.0.format_event(context, writer, event);
        }
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let line = line(event, &time).map_err(|_| fmt::Error)?;
        writeln!(writer, "{}", str::from_utf8(&line).map_err(|_| fmt::Error)?)
    }
}

fn line(event: &Event<'_>, time: &str) -> serde_json::Result<Vec<u8>> {
    let mut line = Vec::with_capacity(LINE);
    let mut serializer = serde_json::Serializer::new(&mut line);
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("timestamp", time)?;
    map.serialize_entry("level", &event.metadata().level().as_serde())?;
    let mut fields = SerdeMapVisitor::new(map);
    event.record(&mut fields);
    let mut map = fields.take_serializer()?;
    map.serialize_entry("target", event.metadata().target())?;
    map.end()?;
    Ok(line)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code")]
mod tests {
    use super::*;
    use std::io::{Read, pipe};
    use tracing_subscriber::{
        Layer, Registry,
        fmt::{Layer as Lines, format::JsonFields},
        layer::SubscriberExt,
    };

    /// What an access line of each kind of field is with this format.
    fn logged(layer: impl Layer<Registry> + Send + Sync) {
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(
                target: ACCESS_LOG,
                client = %"127.0.0.1:1",
                version = ?http::Version::HTTP_11,
                path = "/\"quoted\"\\ \u{1} ü",
                token = 33_u64,
                highest = None::<u64>,
                seconds = 4.4486e-5,
            );
        });
    }

    #[test]
    fn they_are_tracing_subscribers() {
        let lines = || Lines::new().fmt_fields(JsonFields::new());
        let both = [false, true].map(|ours| {
            let (mut reader, writer) = pipe().unwrap();
            let writer = std::sync::Mutex::new(writer);
            if ours {
                logged(lines().event_format(JsonLines::new()).with_writer(writer));
            } else {
                logged(lines().event_format(JsonLines::new().0).with_writer(writer));
            }
            let mut line = String::new();
            reader.read_to_string(&mut line).unwrap();
            let (start, rest) = line.split_at(r#"{"timestamp":"2026-12-01T00:00:00.000000Z"#.len());
            assert!(start.starts_with(r#"{"timestamp":"2"#), "{line}");
            rest.to_owned()
        });
        assert_eq!(both[0], both[1]);
        assert!(both[1].starts_with(r#"","level":"INFO","client":"127.0.0.1:1","#));
        assert!(both[1].ends_with("\"}\n"));
    }
}
