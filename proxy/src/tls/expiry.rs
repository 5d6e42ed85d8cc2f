//! When a certificate expires: the one thing that is read out of it here.

/// `notAfter` of an X.509 certificate (RFC 5280, section 4.1), in seconds since 1970.
pub(super) fn not_after(der: &[u8]) -> Option<i64> {
    let certificate = Der(der).enter(SEQUENCE)?;
    let mut fields = certificate.enter(SEQUENCE)?;
    if fields.tag() == Some(VERSION) {
        fields.skip()?;
    }
    // serialNumber, signature, issuer.
    for _ in 0..3 {
        fields.skip()?;
    }
    let mut validity = fields.enter(SEQUENCE)?;
    validity.skip()?;
    let (tag, time) = validity.next()?;
    let time = std::str::from_utf8(time).ok()?.strip_suffix('Z')?;
    let number = |from: usize, to: usize| time.get(from..to)?.parse::<i64>().ok();
    // RFC 5280, section 4.1.2.5: UTCTime has two digits of the year, from 1950 to 2049.
    let (year, rest) = match tag {
        UTC_TIME if time.len() == 12 => match number(0, 2)? {
            year @ 50.. => (1900 + year, 2),
            year => (2000 + year, 2),
        },
        GENERALIZED_TIME if time.len() == 14 => (number(0, 4)?, 4),
        _ => return None,
    };
    let part = |at: usize| number(rest + 2 * at, rest + 2 * at + 2);
    let days = days_since_1970(year, part(0)?, part(1)?);
    Some(((days * 24 + part(2)?) * 60 + part(3)?) * 60 + part(4)?)
}

/// Days in the Gregorian calendar: years are counted from March, so that a leap day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - 719_468
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Values of DER (X.690), one after the other.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn tag(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The next value: its tag and contents.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
                let length = digits
                    .iter()
                    .fold(0usize, |length, digit| length << 8 | usize::from(*digit));
                (length, rest)
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, contents))
    }

    fn skip(&mut self) -> Option<()> {
        self.next().map(|_| ())
    }

    /// The contents of the next value, which must have this tag.
    fn enter(&self, wanted: u8) -> Option<Self> {
        let (tag, contents) = Der(self.0).next()?;
        (tag == wanted).then_some(Self(contents))
    }
}
