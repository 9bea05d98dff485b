use std::os::unix::fs::PermissionsExt;

use rstest::rstest;

use super::*;

const START: Instant = Instant::ORIGIN;

/// A folder with a pair of files in it.
struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        fixture.write(&pair());
        fixture
    }

    fn write(&self, pair: &Pair) {
        std::fs::write(self.path("crt"), &pair.certificate).unwrap();
        std::fs::write(self.path("key"), &pair.key).unwrap();
    }

    fn path(&self, extension: &str) -> PathBuf {
        self.folder.path().join("tls").with_extension(extension)
    }

    fn source(&self) -> CertificateSource {
        CertificateSource::Files {
            certificate: self.path("crt"),
            key: self.path("key"),
        }
    }
}

fn pair() -> Pair {
    self_signed().unwrap().0
}

fn same(a: &Arc<ServerConfig>, b: &Arc<ServerConfig>) -> bool {
    Arc::ptr_eq(a, b)
}

#[tokio::test]
async fn a_changed_pair_is_served_after_a_second() {
    let fixture = Fixture::new();
    let mut certificates = Certificates::load(fixture.source(), START).unwrap();
    let first = certificates.current(START).await;
    fixture.write(&pair());
    let early = certificates.current(START + Duration::from_millis(999)).await;
    assert!(same(&first, &early), "looked before a second had passed");
    let second = certificates.current(START + CHECK_PERIOD).await;
    assert!(!same(&first, &second), "did not look");
    let third = certificates.current(START + CHECK_PERIOD * 2).await;
    assert!(same(&second, &third), "took the same content for new");
}

#[rstest]
#[case::half_replaced(|fixture: &Fixture| std::fs::write(fixture.path("key"), pair().key).unwrap())]
#[case::garbage(|fixture: &Fixture| std::fs::write(fixture.path("crt"), "garbage").unwrap())]
#[case::empty(|fixture: &Fixture| std::fs::write(fixture.path("key"), "").unwrap())]
#[case::gone(|fixture: &Fixture| std::fs::remove_file(fixture.path("crt")).unwrap())]
#[tokio::test]
async fn the_last_good_pair_is_kept_until_there_is_a_good_one(#[case] break_it: impl Fn(&Fixture)) {
    let fixture = Fixture::new();
    let mut certificates = Certificates::load(fixture.source(), START).unwrap();
    let first = certificates.current(START).await;
    break_it(&fixture);
    let kept = certificates.current(START + CHECK_PERIOD).await;
    assert!(same(&first, &kept));
    assert!(certificates.complaint.is_some());
    fixture.write(&pair());
    let good = certificates.current(START + CHECK_PERIOD * 2).await;
    assert!(!same(&first, &good));
    assert!(certificates.complaint.is_none());
}

#[rstest]
#[case::no_certificate(|fixture: &Fixture| std::fs::remove_file(fixture.path("crt")).unwrap(), "crt")]
#[case::no_key(|fixture: &Fixture| std::fs::write(fixture.path("key"), "x").unwrap(), "key")]
#[case::no_pem(|fixture: &Fixture| std::fs::write(fixture.path("crt"), "x").unwrap(), "crt")]
#[case::no_match(|fixture: &Fixture| std::fs::write(fixture.path("key"), pair().key).unwrap(), "crt")]
fn a_bad_pair_at_start_is_an_error_that_names_the_file(
    #[case] break_it: impl Fn(&Fixture),
    #[case] extension: &str,
) {
    let fixture = Fixture::new();
    break_it(&fixture);
    let error = Certificates::load(fixture.source(), START).unwrap_err();
    let path = fixture.path(extension).display().to_string();
    assert!(error.to_string().contains(&path), "{error}");
}

#[test]
fn a_folder_without_a_pair_gets_one_that_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let source = || CertificateSource::Folder(folder.path().join("new"));
    Certificates::load(source(), START).unwrap();
    let key = folder.path().join("new/cloud-controller-manager.key");
    assert_eq!(
        std::fs::metadata(&key).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let made = std::fs::read(&key).unwrap();
    Certificates::load(source(), START).unwrap();
    assert_eq!(std::fs::read(&key).unwrap(), made);
}
