//! Functions over figures that were taken at times, as Prometheus has them: what they are at the steps of a request.

use std::collections::BTreeMap;

use super::history::Series;

/// A figure is what it was at most so many seconds ago; if that is longer, it is unknown.
const LOOKED_BACK_S: u64 = 30;

/// A function over what a figure was in a window of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverTime {
    /// The growth of a counter in each second.
    Rate,
    /// The same between the last two values.
    InstantRate,
    /// The growth of a counter in the whole window.
    Increase,
    /// The mean.
    Average,
    /// The least.
    Least,
    /// The most.
    Most,
    /// The slope of the nearest line, in each second.
    Slope,
    /// The difference over the whole window.
    Delta,
    /// The difference of the last two values.
    InstantDelta,
}

/// A function that makes one figure of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// All added.
    Sum,
    /// The least.
    Least,
    /// The most.
    Most,
    /// The mean.
    Average,
}

/// A function of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Over the values of one figure.
    OverTime(OverTime),
    /// Over several figures.
    Together(Together),
    /// A percentile of a histogram: none is kept.
    Percentile,
}

impl Function {
    /// The function of this name.
    pub fn parse(name: &str) -> Option<Function> {
        use Function::{OverTime as Over, Percentile, Together as Of};
        Some(match name {
            "rate" => Over(OverTime::Rate),
            "irate" => Over(OverTime::InstantRate),
            "increase" => Over(OverTime::Increase),
            "avg_over_time" => Over(OverTime::Average),
            "min_over_time" => Over(OverTime::Least),
            "max_over_time" => Over(OverTime::Most),
            "deriv" => Over(OverTime::Slope),
            "delta" => Over(OverTime::Delta),
            "idelta" => Over(OverTime::InstantDelta),
            "sum" => Of(Together::Sum),
            "min" => Of(Together::Least),
            "max" => Of(Together::Most),
            "avg" => Of(Together::Average),
            _ => {
                let percent = name.strip_prefix('p')?.parse::<u8>().ok()?;
                (1..=99).contains(&percent).then_some(Percentile)?
            }
        })
    }
}

/// The times at which figures are told.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// The first, in seconds since 1970.
    pub start_s: u64,
    /// None is behind it.
    pub end_s: u64,
    /// Between two of them.
    pub step_s: u64,
}

impl Steps {
    /// How many times there are.
    pub fn count(self) -> u64 {
        if self.start_s > self.end_s {
            0
        } else {
            ((self.end_s - self.start_s) / self.step_s.max(1)).saturating_add(1)
        }
    }

    fn times(self) -> impl Iterator<Item = u64> {
        (self.start_s..=self.end_s).step_by(usize::try_from(self.step_s).unwrap_or(usize::MAX).max(1))
    }
}

/// What a figure is at each step: itself, or a function over the window before.
pub fn at_steps(
    values: &[(u64, f64)],
    over: Option<OverTime>,
    window_s: u64,
    steps: Steps,
) -> Vec<(u64, f64)> {
    let back_s = if over.is_some() { window_s } else { LOOKED_BACK_S };
    let at = |now: u64| {
        let (from, to) = (
            values.partition_point(|(at, _)| at.saturating_add(back_s) < now),
            values.partition_point(|(at, _)| *at <= now),
        );
        let window = values.get(from..to)?;
        let told = match over {
            Some(over) => over.of(window, window_s),
            None => window.last().map(|(_, value)| *value),
        };
        told.map(|told| (now, told))
    };
    steps.times().filter_map(at).collect()
}

impl OverTime {
    /// Its value over a window; `None` if that has too few values.
    fn of(self, window: &[(u64, f64)], window_s: u64) -> Option<f64> {
        let (first, last) = (window.first()?, window.last()?);
        // Times of another node need not rise.
        let lasted_s = last.0.saturating_sub(first.0) as f64;
        let before = window.len().checked_sub(2).and_then(|at| window.get(at));
        match self {
            OverTime::Average => {
                Some(window.iter().map(|(_, value)| value).sum::<f64>() / window.len() as f64)
            }
            OverTime::Least => window.iter().map(|(_, value)| *value).reduce(f64::min),
            OverTime::Most => window.iter().map(|(_, value)| *value).reduce(f64::max),
            _ if lasted_s <= 0.0 => None,
            OverTime::Rate => Some(increase(window) / lasted_s),
            OverTime::Increase => Some(increase(window) / lasted_s * window_s as f64),
            OverTime::InstantRate => {
                let before = *before?;
                let lasted_s = last.0.checked_sub(before.0).filter(|lasted_s| *lasted_s > 0)?;
                Some(increase(&[before, *last]) / lasted_s as f64)
            }
            OverTime::Slope => Some(slope(window)),
            OverTime::Delta => Some((last.1 - first.1) / lasted_s * window_s as f64),
            OverTime::InstantDelta => Some(last.1 - before?.1),
        }
    }
}

/// How much a counter grew. One that is less than before began again at 0.
fn increase(window: &[(u64, f64)]) -> f64 {
    let steps = window.iter().zip(window.iter().skip(1));
    steps.map(|((_, before), (_, after))| if after < before { *after } else { after - before }).sum()
}

/// The slope of the line that is nearest to all values, in each second.
fn slope(window: &[(u64, f64)]) -> f64 {
    let count = window.len() as f64;
    let begin = window.first().map_or(0, |(at, _)| *at);
    let points = || window.iter().map(|(at, value)| (at.saturating_sub(begin) as f64, *value));
    let (times, values) =
        points().fold((0.0, 0.0), |(times, values), (at, value)| (times + at, values + value));
    let (mean_time, mean) = (times / count, values / count);
    let (above, below) = points().fold((0.0, 0.0), |(above, below), (at, value)| {
        (above + (at - mean_time) * (value - mean), below + (at - mean_time).powi(2))
    });
    above / below
}

impl Together {
    fn of(self, values: &[f64]) -> f64 {
        let sum = values.iter().sum::<f64>();
        match self {
            Together::Sum => sum,
            Together::Average => sum / values.len() as f64,
            Together::Least => values.iter().copied().fold(f64::INFINITY, f64::min),
            Together::Most => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// One figure of several: at each time of those that were known then.
    pub fn combine<'a>(self, all: impl Iterator<Item = &'a [(u64, f64)]>) -> Vec<(u64, f64)> {
        let mut by_time: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        all.flatten().for_each(|(at, value)| by_time.entry(*at).or_default().push(*value));
        by_time.into_iter().map(|(at, values)| (at, self.of(&values))).collect()
    }
}

/// Applies functions one after the other; the text says why that cannot be done.
pub fn apply(
    mut all: Vec<Series>,
    functions: &[Function],
    window_s: u64,
    steps: Steps,
) -> Result<Vec<Series>, &'static str> {
    let (over, rest) = match functions {
        [Function::OverTime(over), rest @ ..] => (Some(*over), rest),
        rest => (None, rest),
    };
    all.iter_mut().for_each(|series| series.values = at_steps(&series.values, over, window_s, steps));
    for function in rest {
        match function {
            Function::Together(together) if !all.is_empty() => {
                let values = together.combine(all.iter().map(|series| &series.values[..]));
                all = vec![Series { labels: BTreeMap::new(), values }];
            }
            Function::Together(_) => {}
            Function::OverTime(_) => {
                return Err("a function over time has to be the first one: put sum, min, max, avg behind it");
            }
            Function::Percentile => return Err("a percentile needs a histogram, and none is kept over time"),
        }
    }
    all.retain(|series| !series.values.is_empty());
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [(u64, f64); 5] = [(100, 0.0), (110, 10.0), (120, 40.0), (130, 5.0), (140, 25.0)];

    fn over(name: &str, window_s: u64) -> Option<f64> {
        let Some(Function::OverTime(over)) = Function::parse(name) else { panic!("{name} is over time") };
        let steps = Steps { start_s: 140, end_s: 140, step_s: 1 };
        at_steps(&VALUES, Some(over), window_s, steps).first().map(|(_, value)| *value)
    }

    #[test]
    fn functions_over_time_are_those_of_prometheus() {
        // The counter began again before 130: 10 + 30 + 5 + 20 in 40 seconds.
        for (name, window_s, expected) in [
            ("rate", 40, Some(65.0 / 40.0)),
            ("rate", 10, Some(2.0)),
            ("rate", 9, None),
            ("irate", 40, Some(2.0)),
            ("increase", 20, Some(25.0)),
            ("increase", 80, Some(130.0)),
            ("avg_over_time", 40, Some(16.0)),
            ("min_over_time", 20, Some(5.0)),
            ("max_over_time", 40, Some(40.0)),
            ("deriv", 10, Some(2.0)),
            ("delta", 20, Some(-15.0)),
            ("idelta", 40, Some(20.0)),
        ] {
            assert_eq!(over(name, window_s), expected, "{name} over {window_s}");
        }
        assert!((over("deriv", 40).expect("a slope") - 0.45).abs() < 1e-9, "least squares");
        for wrong in ["", "p", "p0", "p100", "quantile", "Rate"] {
            assert_eq!(Function::parse(wrong), None, "{wrong:?}");
        }
        assert_eq!(Function::parse("p99"), Some(Function::Percentile));
    }

    /// An error in a sum would end the process.
    #[test]
    fn no_window_and_no_times_are_too_much() {
        let (steps, most) = (Steps { start_s: 140, end_s: 140, step_s: 1 }, u64::MAX);
        let back = [(130, 1.0), (140, 2.0), (100, 3.0), (100, 4.0)];
        for name in ["rate", "irate", "increase", "avg_over_time", "deriv", "delta", "idelta"] {
            let Some(Function::OverTime(over)) = Function::parse(name) else { panic!("{name} is over time") };
            assert_eq!(at_steps(&VALUES, Some(over), most, steps).len(), 1, "{name}");
            let told = at_steps(&back, Some(over), most, steps);
            assert!(told.iter().all(|(_, value)| value.is_finite()), "{name}: {told:?}");
        }
    }

    #[test]
    fn a_figure_is_what_it_was_last_unless_that_is_long_ago() {
        let steps = Steps { start_s: 95, end_s: 185, step_s: 15 };
        let told = at_steps(&VALUES, None, 60, steps);
        assert_eq!(told, [(110, 10.0), (125, 40.0), (140, 25.0), (155, 25.0), (170, 25.0)]);
    }

    #[test]
    fn figures_are_put_together_at_each_time() {
        let series = |name: &str, values: &[(u64, f64)]| Series {
            labels: [("bucket".to_owned(), name.to_owned())].into(),
            values: values.to_vec(),
        };
        let all = || vec![series("a", &[(100, 1.0), (110, 3.0)]), series("b", &[(110, 5.0)])];
        let steps = Steps { start_s: 100, end_s: 110, step_s: 10 };
        for (name, expected) in [("sum", 8.0), ("avg", 4.0), ("min", 3.0), ("max", 5.0)] {
            let function = Function::parse(name).expect("a function");
            let told = apply(all(), &[function], 60, steps).expect("it can be done");
            assert_eq!(told.len(), 1, "{name}");
            assert_eq!((told[0].labels.len(), &told[0].values[..]), (0, &[(100, 1.0), (110, expected)][..]));
        }
        let rate = Function::parse("irate").expect("a function");
        let sum = Function::parse("sum").expect("a function");
        assert_eq!(apply(all(), &[rate, sum], 60, steps).expect("it can be done")[0].values, [(110, 0.2)]);
        assert!(apply(all(), &[sum, rate], 60, steps).is_err());
        assert!(apply(all(), &[Function::Percentile], 60, steps).is_err());
    }
}
