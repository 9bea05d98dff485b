//! What a host measures, as a scraper reads it.

use anyhow::{Context, Result, ensure};
use bulkhead_harness::{Host, User};

use crate::Cluster;

/// The samples of one look at `/metrics`.
#[derive(Debug)]
pub struct Metrics(String);

impl Metrics {
    /// Looks.
    ///
    /// # Errors
    ///
    /// If the host does not answer with metrics.
    pub async fn of(host: &Host, cluster: &Cluster) -> Result<Self> {
        let answer = host
            .get("/metrics", Some(cluster.server().token(User::Admin)))
            .await?;
        ensure!(answer.status == 200, "{}: {}", answer.status, answer.body);
        Ok(Self(answer.body))
    }

    /// The lines of the samples of `name`.
    pub fn samples(&self, name: &str) -> Vec<&str> {
        let is_of = |line: &&str| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        };
        self.0.lines().filter(is_of).collect()
    }

    /// The sum of the samples of `name` that have all these labels; `None`: there is no such sample.
    ///
    /// # Errors
    ///
    /// If one is no number.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Result<Option<f64>> {
        let mut sum = None;
        for line in self.samples(name) {
            let Some((set, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let has = |(label, value): &(&str, &str)| set.contains(&format!("{label}=\"{value}\""));
            if labels.iter().all(has) {
                let value: f64 = value.parse().with_context(|| line.to_owned())?;
                sum = Some(sum.unwrap_or_default() + value);
            }
        }
        Ok(sum)
    }
}
