//! A server behind TLS: with certificates made for the test, each wrong in one way.

use super::fake::{Behaviour, Fake};
use super::{Dir, bench, blocks, command, figures, said};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

/// A private CA.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Its certificate, as a file for `--cacert`.
    fn file(&self, dir: &Dir, name: &str) -> PathBuf {
        let file = dir.path().join(name);
        std::fs::write(&file, self.0.pem()).expect("writable");
        file
    }

    /// A server of `fake`'s requests that is called `name` until the end of `year`; its URL.
    fn serves(&self, fake: &Fake, name: &str, year: i32) -> String {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.not_after = date_time_ymd(year, 12, 31);
        let key = KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, &self.0).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .expect("a certificate and its key");
        in_front_of(fake, TlsAcceptor::from(Arc::new(config)))
    }
}

/// Speaks TLS, and passes on what is said within.
fn in_front_of(fake: &Fake, acceptor: TlsAcceptor) -> String {
    let behind = fake.url.strip_prefix("http://").expect("a URL").to_owned();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let url = format!("https://{}", listener.local_addr().expect("bound"));
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_io().build().expect("a runtime");
    std::thread::spawn(move || {
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                let (acceptor, behind) = (acceptor.clone(), behind.clone());
                tokio::spawn(async move {
                    stream.set_nodelay(true).expect("a socket");
                    // A client that refuses the certificate leaves here.
                    let Ok(mut outside) = acceptor.accept(stream).await else {
                        return;
                    };
                    let mut inside = TcpStream::connect(behind).await.expect("the server");
                    inside.set_nodelay(true).expect("a socket");
                    let _ = copy_bidirectional(&mut outside, &mut inside).await;
                });
            }
        });
    });
    url
}

/// P-BENCH-8: a server behind TLS is measured as any other, with the CA that is given and the key that is named, and the
/// key is in nothing that is said.
#[test]
fn a_server_behind_tls_is_measured() {
    const KEY: &str = "sk-of-this-test";
    let fake = Fake::start(Behaviour {
        ttft: Duration::from_millis(60),
        tpot: Duration::from_millis(6),
        ..Behaviour::default()
    });
    let (dir, authority) = (Dir::new("tls"), Authority::new("own"));
    let ca = authority.file(&dir, "ca.pem").display().to_string();
    let url = authority.serves(&fake, "127.0.0.1", 2_999);
    let args = blocks(&url, "2", &["--cacert", &ca, "--api-key-env", "TARGET_KEY"]);
    let output = command(&dir, &args)
        .env("TARGET_KEY", KEY)
        .output()
        .expect("tidegate runs");
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    let figures = figures(&dir, &output);
    let blocks = figures["blocks"].as_array().expect("blocks").iter();
    let served: u64 = blocks
        .map(|block| block["requests"].as_u64().expect("a count"))
        .sum();
    assert_eq!(served as usize, fake.did().len(), "{text}");
    assert!(served > 30, "{text}");
    let target = figures["about"]["Target"].as_str().expect("text");
    assert!(target.starts_with(&url), "{target}");
    let keys = fake.keys();
    let bearer = format!("Bearer {KEY}");
    assert!(
        keys.len() > 30 && keys.iter().all(|key| *key == bearer),
        "{keys:?}"
    );
    assert!(!text.contains(KEY) && !figures.to_string().contains(KEY));
}

/// P-BENCH-8: what is wrong with TLS is told before anything is sent, with what to do.
#[test]
fn what_is_wrong_with_tls_is_told() {
    let fake = Fake::start(Behaviour::default());
    let dir = Dir::new("tls-wrong");
    let [authority, other, again] = ["own", "other", "own"].map(Authority::new);
    let ca = authority.file(&dir, "ca.pem").display().to_string();
    // What the system is taken to know.
    let system = other.file(&dir, "system.pem");
    let good = authority.serves(&fake, "127.0.0.1", 2_999);
    let foreign = other.serves(&fake, "127.0.0.1", 2_999);
    let renewed = again.serves(&fake, "127.0.0.1", 2_999);
    let expired = authority.serves(&fake, "127.0.0.1", 2_021);
    let misnamed = authority.serves(&fake, "elsewhere.example", 2_999);
    let plain = fake.url.replace("http:", "https:");
    let answers = answers_in_plain_text();
    let missing = dir.path().join("none.pem").display().to_string();
    for (url, ca, why) in [
        (
            &good,
            None,
            "its certificate is of a CA that is not known here; give that CA's by --cacert",
        ),
        (
            &foreign,
            Some(&ca),
            "its certificate is of a CA that is not known here",
        ),
        (
            &renewed,
            Some(&ca),
            "its certificate is not signed by the CA of that name that is known here",
        ),
        (&expired, Some(&ca), "its certificate expired "),
        (
            &misnamed,
            Some(&ca),
            "its certificate is for elsewhere.example, not for 127.0.0.1",
        ),
        (
            &plain,
            Some(&ca),
            "it does not speak TLS there; should the target begin with http://?",
        ),
        (&answers, Some(&ca), "it does not speak TLS there"),
        (&good, Some(&missing), "none.pem: cannot be read"),
    ] {
        let mut args = vec!["--target", url, "--rate", "1"];
        args.extend(ca.into_iter().flat_map(|ca| ["--cacert", ca.as_str()]));
        let mut command = command(&dir, &args);
        let output = command.env("SSL_CERT_FILE", &system).output();
        let output = output.expect("tidegate runs");
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(why), "{args:?}: {text}");
        assert!(
            !text.contains("no OpenAI-compatible server"),
            "{args:?}: {text}"
        );
    }
    // By its name, and by a CA that the system knows.
    let named = other.serves(&fake, "localhost", 2_999);
    let named = named.replace("127.0.0.1", "localhost");
    let mut command = command(&dir, &blocks(&named, "1", &[]));
    let output = command.env("SSL_CERT_FILE", &system).output();
    let output = output.expect("tidegate runs");
    assert!(output.status.success(), "{}", said(&output));
    let output = bench(
        &dir,
        &[
            "--target",
            &good,
            "--rate",
            "1",
            "--cacert",
            &ca,
            "--api-key-env",
            "NO_SUCH_KEY",
        ],
    );
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("--api-key-env NO_SUCH_KEY: there is no such variable"),
        "{text}"
    );
}

/// A port that answers whatever comes as a server of plain HTTP does; its URL, as if it spoke TLS.
fn answers_in_plain_text() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut some = [0; 512];
            let _ = stream.read(&mut some);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        }
    });
    url
}
