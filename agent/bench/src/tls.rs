//! TLS to a server: whose certificates are taken, and what is wrong with one, in words.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const DAY_S: u64 = 86_400;

/// Why no certificate could be checked.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file of CAs cannot be used.
    #[error("--cacert {file}: {why}")]
    File {
        /// As given.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// There is no CA at all.
    #[error(
        "this system has no CA certificates{why}: install ca-certificates, or give --cacert FILE"
    )]
    NoRoots {
        /// What could not be read, if that is known.
        why: String,
    },
    /// The library refuses what it is built with.
    #[error("TLS cannot be used")]
    Library(#[from] Error),
}

/// The CAs that a server's certificate may come from.
#[derive(Clone)]
pub struct Trust(TlsConnector);

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Trust")
    }
}

impl Trust {
    /// The system's CAs, or those of `file` (PEM) and no others.
    ///
    /// # Errors
    /// When there are none.
    pub fn new(file: Option<&Path>) -> Result<Self, TrustError> {
        let roots = match file {
            Some(file) => of_file(file)?,
            None => of_system()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Speaks TLS with the server called `host` at the other end of `stream`.
    ///
    /// # Errors
    /// Why not, and what to do about it.
    pub async fn wrap(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> Result<TlsStream<TcpStream>, String> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("no certificate can be for `{host}`"))?;
        let spoken = self.0.connect(name, stream).await;
        spoken.map_err(|error| in_words(&error, host))
    }
}

fn of_system() -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // What cannot be read or used of them is left out, as other clients do.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})"));
        return Err(TrustError::NoRoots {
            why: why.unwrap_or_default(),
        });
    }
    Ok(roots)
}

fn of_file(file: &Path) -> Result<RootCertStore, TrustError> {
    let wrong = |why: String| TrustError::File {
        file: file.display().to_string(),
        why,
    };
    let text = std::fs::read(file).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| wrong(format!("is no PEM: {error}")))?;
        let added = roots.add(certificate);
        added.map_err(|error| wrong(format!("has a certificate that is of no CA: {error}")))?;
    }
    if roots.is_empty() {
        let why = "has no certificate; give the CA's in PEM (-----BEGIN CERTIFICATE-----)";
        return Err(wrong(why.to_owned()));
    }
    Ok(roots)
}

/// What went wrong on the way to TLS with `host`.
fn in_words(error: &io::Error, host: &str) -> String {
    const PLAIN: &str = "it does not speak TLS there; should the target begin with http://?";
    let own = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    match own {
        Some(Error::InvalidCertificate(why)) => of_certificate(why, host),
        Some(Error::InvalidMessage(_)) => PLAIN.to_owned(),
        Some(other) => format!("no TLS with it: {other}"),
        None => match error.kind() {
            // A server of plain HTTP takes the greeting for a request without sense.
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => PLAIN.to_owned(),
            _ => format!("no TLS with it: {error}"),
        },
    }
}

fn of_certificate(why: &CertificateError, host: &str) -> String {
    match why {
        CertificateError::UnknownIssuer => {
            "its certificate is of a CA that is not known here; give that CA's by --cacert FILE"
                .to_owned()
        }
        CertificateError::BadSignature => {
            "its certificate is not signed by the CA of that name that is known here; \
             give the CA's of this day by --cacert FILE"
                .to_owned()
        }
        CertificateError::ExpiredContext { time, not_after } => {
            let days = time.as_secs().saturating_sub(not_after.as_secs()) / DAY_S;
            format!("its certificate expired {days} days ago; renew it on the server")
        }
        CertificateError::Expired => {
            "its certificate has expired; renew it on the server".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet: the clock here or there is wrong".to_owned()
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            format!(
                "its certificate is for {}, not for {host}; name it so in the target",
                names.join(", ")
            )
        }
        CertificateError::NotValidForName => {
            format!(
                "its certificate is not for {host}; name it in the target as its certificate does"
            )
        }
        other => format!("its certificate is not taken: {other}"),
    }
}

/// `h` of `DnsName("h")`, as the library shows a name.
fn bare(name: &str) -> &str {
    let (_, inner) = name.split_once('(').unwrap_or(("", name));
    inner.trim_end_matches(')').trim_matches('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of one test's own.
    struct File(std::path::PathBuf);

    impl File {
        fn of(name: &str, text: &str) -> Self {
            let name = format!("tidegate-tls-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, text).expect("a temporary file");
            Self(path)
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// P-BENCH-8: a file of CAs that is none is refused by its name, with what to do.
    #[test]
    fn a_file_without_a_ca_is_refused() {
        let begin = "-----BEGIN CERTIFICATE-----\n";
        let end = "-----END CERTIFICATE-----\n";
        for (name, text, why) in [
            (
                "empty",
                String::new(),
                "has no certificate; give the CA's in PEM",
            ),
            ("cut", format!("{begin}AAAA\n"), "is no PEM"),
            ("odd", format!("{begin}AAAA\n{end}"), "of no CA"),
        ] {
            let file = File::of(name, &text);
            let said = Trust::new(Some(&file.0)).expect_err(name).to_string();
            let path = file.0.display().to_string();
            assert!(said.contains(why) && said.contains(&path), "{said}");
        }
        let said = Trust::new(Some(Path::new("/nonexistent/ca.pem"))).expect_err("no file");
        assert!(
            said.to_string()
                .contains("--cacert /nonexistent/ca.pem: cannot be read"),
            "{said}"
        );
    }

    #[test]
    fn what_the_library_calls_a_name_is_shown_bare() {
        for (name, is) in [
            ("DnsName(\"a.b\")", "a.b"),
            ("IpAddress(10.0.0.1)", "10.0.0.1"),
            ("c", "c"),
        ] {
            assert_eq!(bare(name), is);
        }
    }
}
