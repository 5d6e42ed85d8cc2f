//! What all pictures have in common.

use super::{
    ReportError,
    palette::{AXIS, GRID, Ink, TEXT},
};
use plotters::{
    coord::{
        Shift,
        ranged1d::{AsRangedCoord, Ranged, ValueFormatter},
    },
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

pub(super) const WIDTH: u32 = 1140;
/// Room for the names at the left, the same in pictures that stand one above the other.
pub(super) const LEFT: u32 = 170;

pub(super) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws a picture of this height.
pub(super) fn picture(
    height: u32,
    draw: impl FnOnce(&Canvas<'_>) -> Result<(), ReportError>,
) -> Result<String, ReportError> {
    let mut svg = String::new();
    let canvas = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    draw(&canvas)?;
    canvas.present()?;
    drop(canvas);
    Ok(svg)
}

/// Text of this size and colour.
pub(super) fn text(size: u32, ink: Ink) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&ink.color())
}

pub(super) fn anchored(size: u32, ink: Ink, x: HPos, y: VPos) -> TextStyle<'static> {
    text(size, ink).pos(Pos::new(x, y))
}

/// Axes and a title.
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) left: u32,
    pub(super) x_ticks: usize,
    pub(super) y_ticks: usize,
}

/// A chart within a picture.
pub(super) type Chart<'a, X, Y> = ChartContext<
    'a,
    SVGBackend<'a>,
    Cartesian2d<<X as AsRangedCoord>::CoordDescType, <Y as AsRangedCoord>::CoordDescType>,
>;

impl Frame<'_> {
    /// Lays it out, with the labels that are given for the values of the axes.
    pub(super) fn draw<'a, X, Y, T, U>(
        &self,
        canvas: &Canvas<'a>,
        x: X,
        y: Y,
        x_label: &dyn Fn(&T) -> String,
        y_label: &dyn Fn(&U) -> String,
    ) -> Result<Chart<'a, X, Y>, ReportError>
    where
        X: AsRangedCoord<Value = T>,
        Y: AsRangedCoord<Value = U>,
        X::CoordDescType: ValueFormatter<T> + Ranged<ValueType = T>,
        Y::CoordDescType: ValueFormatter<U> + Ranged<ValueType = U>,
    {
        let mut chart = ChartBuilder::on(canvas)
            .caption(self.title, text(15, TEXT))
            .margin(6)
            .margin_right(20)
            .x_label_area_size(if self.x.is_empty() { 22 } else { 38 })
            .y_label_area_size(self.left)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.color())
            .axis_style(AXIS.color())
            .label_style(text(12, AXIS))
            .axis_desc_style(text(12, AXIS))
            .x_desc(self.x)
            .x_labels(self.x_ticks)
            .y_labels(self.y_ticks)
            .x_label_formatter(x_label)
            .y_label_formatter(y_label)
            .draw()?;
        Ok(chart)
    }
}
