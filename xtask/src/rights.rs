//! What the end-to-end tests asked of their API servers, beside what `deploy/manifests` grants: no right is missing,
//! and none is granted for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::say;

/// Where each API server of the tests leaves what it was asked.
pub(crate) const FOLDER: &str = "target/e2e-audit";
/// The environment variable that tells the tests so.
pub(crate) const FOLDER_VARIABLE: &str = "BULKHEAD_AUDIT_DIR";
/// Why rights are granted that no test uses.
const REASONS: &str = "deploy/rbac-reasons.yaml";
/// As whom hosts ask.
const HOST_USER: &str = "system:serviceaccount:bulkhead-system:bulkhead";
const FORBIDDEN: u16 = 403;

/// What one API server was asked: of each kind of request one.
#[derive(Debug, Deserialize)]
struct Asked {
    /// The test.
    scenario: String,
    /// Why it means to be refused; `None`: it does not.
    forbidden_because: Option<String>,
    requests: Vec<Request>,
}

#[derive(Debug, Deserialize)]
struct Request {
    user: String,
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    code: u16,
}

/// A verb on a resource. The group is empty for the core group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Use {
    group: String,
    resource: String,
    verb: String,
}

/// A right that no test uses, and why it is granted.
#[derive(Debug, Deserialize)]
struct Reason {
    #[serde(flatten)]
    right: Use,
    reason: String,
}

/// A document of `deploy/manifests`, as far as it is about rights.
#[derive(Debug, Deserialize)]
struct Document {
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(rename = "roleRef")]
    role: Option<RoleRef>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Debug, Deserialize)]
struct RoleRef {
    kind: String,
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
}

/// Empties the folder, so that what is in it after the tests is of this run.
pub(crate) fn prepare(root: &Path) -> Result<PathBuf> {
    let folder = root.join(FOLDER);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// Compares the whole run with the manifests.
pub(crate) fn check(root: &Path) -> Result<()> {
    let granted = granted(&documents(&root.join("deploy/manifests"))?)?;
    let reasons: Vec<Reason> = read_yaml(&root.join(REASONS))?;
    let asked = asked(&root.join(FOLDER))?;
    let findings = findings(&granted, &reasons, &asked);
    for finding in &findings {
        say(format!("    {finding}"));
    }
    if !findings.is_empty() {
        bail!(
            "the rights are not exactly those needed: {} findings",
            findings.len()
        );
    }
    say(format!(
        "    {} API servers: none refused anything that was not meant to be; of {} rights {} are used, {} have a reason",
        asked.len(),
        granted.len(),
        granted.len() - reasons.len(),
        reasons.len()
    ));
    Ok(())
}

/// Everything that is wrong, one line each.
fn findings(granted: &BTreeSet<Use>, reasons: &[Reason], asked: &[Asked]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    for Asked {
        scenario,
        forbidden_because,
        requests,
    } in asked
    {
        let mut was_forbidden = false;
        for request in requests {
            if request.code == FORBIDDEN {
                was_forbidden = true;
                if forbidden_because.is_none() {
                    findings.push(format!(
                        "{scenario}: {} may not {}",
                        request.user,
                        request.right()
                    ));
                }
            } else if request.user == HOST_USER {
                used.insert(request.right());
            }
        }
        if let (Some(reason), false) = (forbidden_because, was_forbidden) {
            findings.push(format!("{scenario}: nothing was forbidden, although {reason}"));
        }
    }
    let excused: BTreeMap<&Use, &str> = reasons.iter().map(|it| (&it.right, &*it.reason)).collect();
    for right in granted
        .difference(&used)
        .filter(|right| !excused.contains_key(right))
    {
        findings.push(format!(
            "no test uses the right to {right}: do not grant it, or say why in {REASONS}"
        ));
    }
    for (right, reason) in excused {
        if !granted.contains(right) {
            findings.push(format!("{REASONS}: the right to {right} is not granted"));
        } else if used.contains(right) {
            findings.push(format!("{REASONS}: the tests do {right}: it needs no reason"));
        } else if reason.trim().is_empty() {
            findings.push(format!("{REASONS}: the reason for the right to {right} is empty"));
        }
    }
    findings
}

/// What the roles of the manifests grant. Bindings to roles that are not among them are errors: nothing would be known
/// of what they grant.
fn granted(documents: &[Document]) -> Result<BTreeSet<Use>> {
    let mut rights = BTreeSet::new();
    for document in documents {
        for rule in &document.rules {
            for group in &rule.api_groups {
                for resource in &rule.resources {
                    rights.extend(rule.verbs.iter().map(|verb| Use {
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                    }));
                }
            }
        }
        if let Some(role) = &document.role
            && !documents
                .iter()
                .any(|other| other.kind == role.kind && other.metadata.name == role.name)
        {
            bail!(
                "{} {} binds {} {}, which the manifests do not hold",
                document.kind,
                document.metadata.name,
                role.kind,
                role.name
            );
        }
    }
    if rights.is_empty() {
        bail!("the manifests grant nothing");
    }
    Ok(rights)
}

fn documents(folder: &Path) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    for path in files(folder, "yaml")? {
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let all: Vec<serde_json::Value> =
            serde_saphyr::from_multiple(&text).with_context(|| format!("read {} as YAML", path.display()))?;
        for document in all.into_iter().filter(|document| !document.is_null()) {
            documents.push(
                serde_json::from_value(document)
                    .with_context(|| format!("read an object of {}", path.display()))?,
            );
        }
    }
    Ok(documents)
}

fn asked(folder: &Path) -> Result<Vec<Asked>> {
    let mut all = Vec::new();
    if folder.exists() {
        for path in files(folder, "json")? {
            all.push(read_yaml(&path)?);
        }
    }
    if all.is_empty() {
        bail!(
            "{} holds nothing of any API server: run the step e2e first, which fills it",
            folder.display()
        );
    }
    Ok(all)
}

fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == ending) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// JSON is YAML too.
fn read_yaml<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("read {} as YAML", path.display()))
}

impl Request {
    fn right(&self) -> Use {
        let resource = match self.subresource.as_str() {
            "" => self.resource.clone(),
            subresource => format!("{}/{subresource}", self.resource),
        };
        Use {
            group: self.group.clone(),
            resource,
            verb: self.verb.clone(),
        }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match self.group.as_str() {
            "" => Ok(()),
            group => write!(f, ".{group}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(verb: &str) -> Use {
        Use {
            group: String::new(),
            resource: "nodes/status".to_owned(),
            verb: verb.to_owned(),
        }
    }

    fn asked(user: &str, verb: &str, code: u16, forbidden_because: Option<&str>) -> Asked {
        Asked {
            scenario: "s".to_owned(),
            forbidden_because: forbidden_because.map(str::to_owned),
            requests: vec![Request {
                user: user.to_owned(),
                verb: verb.to_owned(),
                group: String::new(),
                resource: "nodes".to_owned(),
                subresource: "status".to_owned(),
                code,
            }],
        }
    }

    fn reason(verb: &str, reason: &str) -> Reason {
        Reason {
            right: right(verb),
            reason: reason.to_owned(),
        }
    }

    fn found(reasons: &[Reason], asked: &[Asked]) -> Vec<String> {
        findings(&BTreeSet::from([right("patch")]), reasons, asked)
    }

    #[test]
    fn what_is_granted_and_used_is_well() {
        assert!(found(&[], &[asked(HOST_USER, "patch", 200, None)]).is_empty());
        // A conflict is the answer to who may.
        assert!(found(&[], &[asked(HOST_USER, "patch", 409, None)]).is_empty());
    }

    #[test]
    fn what_nobody_uses_is_found_unless_there_is_a_reason() {
        let unused = "no test uses the right to patch nodes/status";
        assert!(found(&[], &[])[0].starts_with(unused));
        assert!(found(&[], &[asked("admin", "patch", 200, None)])[0].starts_with(unused));
        assert!(found(&[reason("patch", "rare")], &[]).is_empty());
    }

    #[test]
    fn a_reason_that_is_none_is_found() {
        let used = [asked(HOST_USER, "patch", 200, None)];
        assert!(found(&[reason("patch", "rare")], &used)[0].contains("needs no reason"));
        assert!(found(&[reason("get", "rare")], &used)[0].contains("is not granted"));
        assert!(found(&[reason("patch", " ")], &[])[0].contains("is empty"));
    }

    #[test]
    fn what_was_forbidden_is_found_unless_the_test_means_it() {
        let used = || asked(HOST_USER, "patch", 200, None);
        let found_of = |asked| found(&[], &[used(), asked]);
        assert_eq!(
            found_of(asked("scraper", "list", 403, None)),
            ["s: scraper may not list nodes/status"]
        );
        assert!(found_of(asked(HOST_USER, "list", 403, Some("it is tried"))).is_empty());
        assert!(
            found_of(asked(HOST_USER, "list", 200, Some("it is tried")))[0].contains("nothing was forbidden")
        );
    }

    #[test]
    fn a_right_that_was_only_refused_is_not_used() {
        let refused = [asked(HOST_USER, "patch", 403, Some("it is tried"))];
        assert_eq!(found(&[], &refused).len(), 1);
    }

    #[test]
    fn without_anything_asked_there_is_no_verdict() {
        let error = super::asked(Path::new("nowhere")).expect_err("there is nothing");
        assert!(error.to_string().contains("run the step e2e first"));
    }
}
