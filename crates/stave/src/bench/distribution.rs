//! Which key comes next: all alike, or few often and many seldom (Zipf), or those of the connection alone.

use std::str::FromStr;

use super::rng::Rng;

/// The skew of Zipf unless it is given; the one YCSB made usual.
const USUAL_THETA: f64 = 0.99;
/// Beyond this the first key takes nearly everything and the arithmetic loses its digits.
const MAX_THETA: f64 = 10.0;

/// How keys are chosen, as written on the command line: `uniform`, `own`, `zipf` or `zipf:THETA`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All alike.
    Uniform,
    /// All alike, but each connection has its own: no two sync writes of a document meet.
    Own,
    /// The k-th most popular key is asked for in proportion to `1 / k^theta`.
    Zipf {
        /// The skew.
        theta: f64,
    },
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Distribution, String> {
        let theta = match text.split_once(':') {
            None if text == "uniform" => return Ok(Distribution::Uniform),
            None if text == "own" => return Ok(Distribution::Own),
            None if text == "zipf" => USUAL_THETA,
            Some(("zipf", theta)) => {
                theta.parse().ok().filter(|theta| *theta > 0.0 && *theta <= MAX_THETA).ok_or_else(|| {
                    format!(
                        "`{theta}` is not a skew; give a number above 0 and up to {MAX_THETA}, like zipf:0.99"
                    )
                })?
            }
            _ => return Err(format!("`{text}` is not a distribution; give uniform, own, zipf or zipf:0.99")),
        };
        Ok(Distribution::Zipf { theta })
    }
}

impl std::fmt::Display for Distribution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Distribution::Uniform => f.write_str("uniform"),
            Distribution::Own => f.write_str("own keys"),
            Distribution::Zipf { theta } => write!(f, "zipf {theta}"),
        }
    }
}

/// Chooses among `keys` keys in constant time.
#[derive(Clone, Debug)]
pub struct KeyChoice {
    keys: u64,
    /// Into how many shares the keys are divided.
    shares: u64,
    zipf: Option<Zipf>,
    /// Prime to `keys`: rank times this, modulo `keys`, is a permutation that scatters the popular ranks.
    scatter: u64,
}

impl KeyChoice {
    /// For key numbers from 0 to `keys - 1`; at most 2^32. There are at least as many keys as `connections`.
    pub fn new(distribution: Distribution, keys: u64, connections: u64) -> KeyChoice {
        assert!((1..=1 << 32).contains(&keys), "the command line checks the number of keys");
        let (zipf, shares) = match distribution {
            Distribution::Uniform => (None, 1),
            Distribution::Own => (None, connections),
            Distribution::Zipf { theta } => (Some(Zipf::new(keys, theta)), 1),
        };
        assert!((1..=keys).contains(&shares), "the command line checks that there are enough keys");
        // Near the golden section neighbours land farthest apart.
        let start = (keys as f64 * 0.618_033_988_75) as u64 | 1;
        let scatter = (start..).find(|n| greatest_common_divisor(*n, keys) == 1);
        KeyChoice { keys, shares, zipf, scatter: scatter.expect("some number above is prime to it") }
    }

    /// The next key's number, for the connection with this number.
    #[inline]
    pub fn next(&self, rng: &mut Rng, connection: u64) -> u64 {
        match &self.zipf {
            None => rng.below(self.keys / self.shares) * self.shares + connection % self.shares,
            // Both factors are at most about 2^32.
            Some(zipf) => (zipf.rank(rng) - 1) * self.scatter % self.keys,
        }
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Ranks from 1 to `ranks`, by rejection-inversion (Hoermann and Derflinger, "Rejection-inversion to generate variates
/// from monotone discrete distributions", 1996): exact, for every skew, without a table.
#[derive(Clone, Debug)]
struct Zipf {
    ranks: f64,
    theta: f64,
    /// The area's ends: that of the first rank is cut so that it is never rejected.
    area_first: f64,
    area_last: f64,
    /// Closer to a rank than this, acceptance is certain.
    sure: f64,
}

impl Zipf {
    fn new(ranks: u64, theta: f64) -> Zipf {
        let mut zipf = Zipf { ranks: ranks as f64, theta, area_first: 0.0, area_last: 0.0, sure: 0.0 };
        zipf.area_first = zipf.area(1.5) - 1.0;
        zipf.area_last = zipf.area(zipf.ranks + 0.5);
        zipf.sure = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.height(2.0));
        zipf
    }

    #[inline]
    fn rank(&self, rng: &mut Rng) -> u64 {
        loop {
            let area = self.area_last + rng.unit() * (self.area_first - self.area_last);
            let x = self.area_inverse(area);
            let rank = (x + 0.5).floor().clamp(1.0, self.ranks);
            if rank - x <= self.sure || area >= self.area(rank + 0.5) - self.height(rank) {
                return rank as u64;
            }
        }
    }

    fn height(&self, x: f64) -> f64 {
        x.powf(-self.theta)
    }

    /// The integral of `height`, up to a constant.
    fn area(&self, x: f64) -> f64 {
        let power = 1.0 - self.theta;
        if self.is_harmonic() { x.ln() } else { (power * x.ln()).exp_m1() / power }
    }

    #[inline]
    fn area_inverse(&self, area: f64) -> f64 {
        let power = 1.0 - self.theta;
        if self.is_harmonic() { area.exp() } else { ((power * area).ln_1p() / power).exp() }
    }

    /// So close to 1 that dividing by the difference is worse than taking the limit.
    fn is_harmonic(&self) -> bool {
        (1.0 - self.theta).abs() < 1e-9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observed and expected frequencies of the first ranks, and of everything behind, agree within five deviations.
    fn check_zipf(ranks: u64, theta: f64) {
        const SAMPLES: u32 = 400_000;
        let zipf = Zipf::new(ranks, theta);
        let mut rng = Rng::new(7, 0);
        let mut seen = vec![0u32; ranks as usize + 1];
        for _ in 0..SAMPLES {
            seen[zipf.rank(&mut rng) as usize] += 1;
        }
        let total: f64 = (1..=ranks).map(|k| (k as f64).powf(-theta)).sum();
        let check = |observed: f64, probability: f64, what: &str| {
            let expected = probability * f64::from(SAMPLES);
            let deviation = (expected * (1.0 - probability)).sqrt().max(1.0);
            assert!((observed - expected).abs() < 5.0 * deviation, "{what}: {observed} against {expected}");
        };
        let mut tail = 1.0;
        for k in 1..=ranks.min(50) {
            let probability = (k as f64).powf(-theta) / total;
            tail -= probability;
            check(f64::from(seen[k as usize]), probability, &format!("theta {theta} rank {k}"));
        }
        let behind: u32 = seen.iter().skip(51).sum();
        check(f64::from(behind), tail.max(0.0), &format!("theta {theta} behind"));
    }

    #[test]
    fn zipf_has_the_right_frequencies() {
        for theta in [0.2, 0.5, 0.99, 1.0, 1.2, 3.0] {
            check_zipf(1_000, theta);
        }
        check_zipf(1, 0.99);
        check_zipf(2, 0.99);
        check_zipf(100_000, 0.99);
    }

    #[test]
    fn scattering_loses_no_key() {
        for keys in [1u64, 2, 3, 10, 1_000, 4_096, 99_991] {
            let choice = KeyChoice::new(Distribution::Zipf { theta: 0.99 }, keys, 1);
            let mut hit = vec![false; keys as usize];
            for rank in 0..keys {
                hit[(rank * choice.scatter % keys) as usize] = true;
            }
            assert!(hit.iter().all(|hit| *hit), "{keys} keys");
        }
    }

    #[test]
    fn uniform_reaches_every_key() {
        let choice = KeyChoice::new(Distribution::Uniform, 16, 4);
        let mut rng = Rng::new(1, 1);
        let mut seen = [0u32; 16];
        for _ in 0..16_000 {
            seen[choice.next(&mut rng, 3) as usize] += 1;
        }
        assert!(seen.iter().all(|n| (800..1_200).contains(n)), "{seen:?}");
    }

    #[test]
    fn own_keys_are_nobody_elses() {
        let choice = KeyChoice::new(Distribution::Own, 10, 3);
        let mut rng = Rng::new(1, 1);
        let mut owners = [None; 10];
        for round in 0..3_000 {
            let connection = round % 3;
            let owner = &mut owners[choice.next(&mut rng, connection) as usize];
            assert_eq!(*owner.get_or_insert(connection), connection);
        }
        assert_eq!(owners.iter().flatten().count(), 9, "three for each, the last key is left over");
    }

    #[test]
    fn reads_the_command_line() {
        assert_eq!("own".parse(), Ok(Distribution::Own));
        assert_eq!("uniform".parse(), Ok(Distribution::Uniform));
        assert_eq!("zipf".parse(), Ok(Distribution::Zipf { theta: 0.99 }));
        assert_eq!("zipf:1.2".parse(), Ok(Distribution::Zipf { theta: 1.2 }));
        for bad in ["", "zip", "zipf:", "zipf:0", "zipf:-1", "zipf:NaN", "zipf:inf", "uniform:1"] {
            assert!(bad.parse::<Distribution>().is_err(), "{bad}");
        }
    }
}
