//! The colours of the pictures. plotters writes a fixed one to each shape; the dark theme gives the same shape another by a rule of
//! the style sheet, which outranks an attribute (CSS, "presentation attributes"). So each colour has one meaning.

use plotters::style::RGBColor;
use std::fmt::Write;

/// A colour on light and on dark paper.
#[derive(Clone, Copy)]
pub(super) struct Ink {
    pub(super) class: &'static str,
    light: (u8, u8, u8),
    dark: (u8, u8, u8),
}

impl Ink {
    /// As it is drawn.
    pub(super) const fn color(self) -> RGBColor {
        RGBColor(self.light.0, self.light.1, self.light.2)
    }
}

const fn ink(class: &'static str, light: (u8, u8, u8), dark: (u8, u8, u8)) -> Ink {
    Ink { class, light, dark }
}

pub(super) const TEXT: Ink = ink("ink-text", (0x1f, 0x23, 0x28), (0xe6, 0xed, 0xf3));
pub(super) const AXIS: Ink = ink("ink-axis", (0x59, 0x63, 0x6e), (0x91, 0x98, 0xa1));
pub(super) const GRID: Ink = ink("ink-grid", (0xd1, 0xd9, 0xe0), (0x30, 0x36, 0x3d));
pub(super) const APPLIED: Ink = ink("ink-applied", (0x09, 0x69, 0xda), (0x44, 0x93, 0xf8));
pub(super) const REFUSED: Ink = ink("ink-refused", (0xbc, 0x4c, 0x00), (0xf0, 0x88, 0x3e));
pub(super) const UNKNOWN: Ink = ink("ink-unknown", (0x82, 0x50, 0xdf), (0xab, 0x7d, 0xf8));
pub(super) const BROKEN: Ink = ink("ink-broken", (0xcf, 0x22, 0x2e), (0xff, 0x7b, 0x72));
pub(super) const FAULT: Ink = ink("ink-fault", (0x9a, 0x67, 0x00), (0xd2, 0x99, 0x22));
pub(super) const GOAL: Ink = ink("ink-goal", (0x1a, 0x7f, 0x38), (0x3f, 0xb9, 0x50));

/// For what comes in several: workers, proxies. Told apart with less than full colour sight, too.
pub(super) const SERIES: [Ink; 6] = [
    ink("ink-1", (0x0a, 0x30, 0x69), (0x79, 0xc0, 0xff)),
    ink("ink-2", (0xe1, 0x6f, 0x24), (0xff, 0xa6, 0x57)),
    ink("ink-3", (0x1b, 0x7c, 0x83), (0x39, 0xc5, 0xcf)),
    ink("ink-4", (0xa4, 0x75, 0x00), (0xe3, 0xb3, 0x41)),
    ink("ink-5", (0x99, 0x28, 0x6e), (0xf7, 0x78, 0xba)),
    ink("ink-6", (0x57, 0x60, 0x6a), (0x8b, 0x94, 0x9e)),
];

fn all() -> impl Iterator<Item = Ink> {
    [
        TEXT, AXIS, GRID, APPLIED, REFUSED, UNKNOWN, BROKEN, FAULT, GOAL,
    ]
    .into_iter()
    .chain(SERIES)
}

/// The rules that give each colour its dark twin, and legends the same colours.
pub(super) fn style() -> String {
    let mut style = String::new();
    let hex = |(r, g, b): (u8, u8, u8)| format!("#{r:02X}{g:02X}{b:02X}");
    for ink in all() {
        let _ = writeln!(style, ".{} {{ color: {}; }}", ink.class, hex(ink.light));
    }
    style.push_str("@media (prefers-color-scheme: dark) {\n");
    for ink in all() {
        let (light, dark, class) = (hex(ink.light), hex(ink.dark), ink.class);
        let _ = writeln!(
            style,
            "svg [fill=\"{light}\"] {{ fill: {dark}; }} svg [stroke=\"{light}\"] {{ stroke: {dark}; }} .{class} {{ color: {dark}; }}"
        );
    }
    style.push_str("}\n");
    style
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_colour_has_one_meaning() {
        let light: BTreeSet<_> = all().map(|ink| ink.light).collect();
        assert_eq!(light.len(), all().count());
    }
}
