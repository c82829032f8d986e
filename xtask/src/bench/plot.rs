//! A plot as a few lines of SVG: one curve over sizes that double, from 0 up.

use std::fmt::Write as _;

/// The picture and the room around the curve, in pixels.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

/// What is drawn.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    /// What stands below each point, and its height.
    pub(super) points: &'a [(String, f64)],
}

impl Plot<'_> {
    /// The file's text. Points lie equally far apart.
    pub(super) fn svg(&self) -> String {
        let most = self.points.iter().map(|point| point.1).fold(0.0, f64::max);
        let step = step(most);
        let steps = (most / step).ceil().max(1.0);
        let up = |value: f64| HEIGHT - BOTTOM - value / (step * steps) * (HEIGHT - TOP - BOTTOM);
        let gaps = self.points.len().saturating_sub(1).max(1) as f64;
        let along = |i: usize| LEFT + (WIDTH - LEFT - RIGHT) * i as f64 / gaps;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\" text-anchor=\"middle\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let mut line = 0.0;
        while line <= steps {
            let (value, y) = (line * step, up(line * step));
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#ccc\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0
            );
            line += 1.0;
        }
        let mut path = String::new();
        for (i, (label, value)) in self.points.iter().enumerate() {
            let (x, y) = (along(i), up(*value));
            let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/><text x=\"{x:.1}\" y=\"{:.1}\">{label}</text>",
                HEIGHT - BOTTOM + 18.0
            );
        }
        let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"black\" stroke-width=\"1.5\"/>");
        let texts = [
            (WIDTH / 2.0, 20.0, self.title, ""),
            (WIDTH / 2.0, HEIGHT - 10.0, self.x, ""),
            (15.0, HEIGHT / 2.0, self.y, " transform=\"rotate(-90 15 180)\""),
        ];
        for (x, y, text, turned) in texts {
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\"{turned}>{text}</text>");
        }
        svg + "</svg>\n"
    }
}

/// A round distance between lines, for four to ten of them up to `most`.
fn step(most: f64) -> f64 {
    let mut ten = 1.0;
    while ten * 10.0 < most {
        ten *= 10.0;
    }
    [0.1, 0.2, 0.5, 1.0].map(|part| part * ten).into_iter().find(|step| most / step <= 10.0).unwrap_or(ten)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_round_and_few() {
        assert_eq!([9.0, 45.0, 714.0, 151.0].map(step), [1.0, 5.0, 100.0, 20.0]);
    }

    #[test]
    fn points_are_where_their_values_are() {
        let points = [("1".to_owned(), 100.0), ("2".to_owned(), 50.0), ("4".to_owned(), 0.0)];
        let svg = Plot { title: "t", x: "x", y: "y", points: &points }.svg();
        // The axis from 40 to 310, and from 60 to 620.
        assert!(svg.contains("M60.0 40.0L340.0 175.0L620.0 310.0"), "{svg}");
        assert!(svg.contains(">4</text>") && svg.ends_with("</svg>\n"), "{svg}");
    }
}
