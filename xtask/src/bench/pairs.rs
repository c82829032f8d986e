//! Two measurements in turn, and what may be said of them.
//!
//! A machine gets slower and faster by itself, over seconds and minutes. Two programs that run one after the other see
//! about the same machine, so each pair gives a ratio that is better than either figure, and the median of the ratios
//! does not mind a pair that was disturbed.

use crate::project::Problem;

/// The figures of all pairs, in order.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    a: Vec<f64>,
    b: Vec<f64>,
}

/// The middle of some figures and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// Measures `n` pairs. Which of the two goes first changes from pair to pair, so that neither always finds the machine
/// as the other left it.
///
/// # Errors
/// The first one of a measurement.
pub(super) fn pairs(
    n: u32,
    mut a: impl FnMut() -> Result<f64, Problem>,
    mut b: impl FnMut() -> Result<f64, Problem>,
) -> Result<Pairs, Problem> {
    let mut pairs = Pairs::default();
    for i in 0..n {
        if i % 2 == 0 {
            pairs.a.push(a()?);
            pairs.b.push(b()?);
        } else {
            pairs.b.push(b()?);
            pairs.a.push(a()?);
        }
    }
    Ok(pairs)
}

impl Pairs {
    /// The first program's figures.
    pub(super) fn a(&self) -> Spread {
        Spread::of(&self.a)
    }

    /// The second program's figures.
    pub(super) fn b(&self) -> Spread {
        Spread::of(&self.b)
    }

    /// The first one's figure over the second one's, pair by pair.
    pub(super) fn ratio(&self) -> Spread {
        Spread::of(&self.a.iter().zip(&self.b).map(|(a, b)| a / b).collect::<Vec<_>>())
    }

    /// A table of the pairs and one of their medians, `unit` being that of both programs' figures.
    pub(super) fn tables(&self, names: [&str; 2], unit: &str) -> String {
        let [first, second] = names;
        let mut text = format!("| {unit} | median | min | max |\n|---|---:|---:|---:|\n");
        for (name, spread) in [(first, self.a()), (second, self.b()), ("ratio", self.ratio())] {
            let Spread { median, min, max } = spread;
            text.push_str(&format!("| {name} | {median:.3} | {min:.3} | {max:.3} |\n"));
        }
        text.push_str(&format!("\n| pair | {first} | {second} | ratio |\n|---:|---:|---:|---:|\n"));
        for (i, (a, b)) in self.a.iter().zip(&self.b).enumerate() {
            text.push_str(&format!("| {} | {a:.3} | {b:.3} | {:.3} |\n", i + 1, a / b));
        }
        text
    }
}

impl Spread {
    /// Of at least one figure; NaN everywhere when there is none.
    pub(super) fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
        let last = sorted.len().saturating_sub(1);
        Self { median: f64::midpoint(at(last / 2), at(last.div_ceil(2))), min: at(0), max: at(last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one_or_the_mean_of_two() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]), Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of(&[7.0]), Spread { median: 7.0, min: 7.0, max: 7.0 });
        assert!(Spread::of(&[]).median.is_nan());
    }

    #[test]
    fn pairs_alternate_and_give_a_ratio_each() {
        let order = std::cell::RefCell::new(String::new());
        let mut speed = 0.0;
        let pairs = pairs(
            4,
            || {
                order.borrow_mut().push('a');
                speed += 1.0;
                Ok(2.0 * speed)
            },
            || {
                order.borrow_mut().push('b');
                Ok(2.0)
            },
        )
        .unwrap();
        assert_eq!(order.into_inner(), "abbaabba");
        assert_eq!(pairs.ratio(), Spread { median: 2.5, min: 1.0, max: 4.0 });
        let tables = pairs.tables(["ours", "theirs"], "Mpps");
        assert!(tables.contains("| ratio | 2.500 | 1.000 | 4.000 |"), "{tables}");
        assert!(tables.contains("| 3 | 6.000 | 2.000 | 3.000 |"), "{tables}");
    }

    #[test]
    fn the_first_failure_ends_it() {
        let mut calls = 0;
        let failed = pairs(
            5,
            || Ok(1.0),
            || {
                calls += 1;
                Err(Problem("broken".into()))
            },
        );
        assert!(failed.is_err() && calls == 1);
    }
}
