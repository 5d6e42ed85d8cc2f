use super::*;

#[test]
fn durations_are_strict() {
    for (text, millis) in [
        ("250ms", 250),
        ("15s", 15_000),
        ("1m30s", 90_000),
        ("1h", 3_600_000),
        ("0s", 0),
    ] {
        let read = duration(text).unwrap();
        assert_eq!(read.as_millis(), millis);
        assert_eq!(duration(&show_duration(read)).unwrap(), read);
    }
    for text in [
        "",
        "15",
        "s",
        "-1s",
        "+1s",
        "1.5s",
        "1 s",
        " 1s",
        "1S",
        "1s1m",
        "1s1s",
        "1d",
        "99999999999999999999s",
        "1000h",
        "é",
    ] {
        assert!(duration(text).is_err(), "{text:?}");
    }
}

#[test]
fn sizes_are_strict() {
    for (text, bytes) in [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("64KiB", 65536),
        ("1MiB", 1 << 20),
        ("64KB", 64000),
    ] {
        assert_eq!(size(text).unwrap(), bytes);
        assert_eq!(size(&show_size(bytes)).unwrap(), bytes);
    }
    for text in [
        "",
        "KiB",
        "-1",
        "+1",
        "1.5KiB",
        "64 KiB",
        "64kib",
        "99999999999999999999",
        "18446744073709551615KiB",
    ] {
        assert!(size(text).is_err(), "{text:?}");
    }
}
