//! S3, by boto3, on moto.

use crate::support::{Fenced, assert_good, brought, curl, example, serve, work};
use palisade_loadtest::servers::Process;
use std::{
    net::SocketAddr,
    path::PathBuf,
    process::{Command, Output},
};

/// moto with the bucket `reports`, and Python with boto3.
struct Moto {
    python: PathBuf,
    store: SocketAddr,
    _process: Process,
}

impl Moto {
    fn start() -> Option<Self> {
        let moto = brought("venv/bin/moto_server")?;
        let (process, store) = serve("moto", |port| {
            let mut command = Command::new(&moto);
            command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
            command
        });
        let made = curl(&["-X", "PUT", "-d", "", &format!("http://{store}/reports")]);
        assert_good(&made);
        Some(Self {
            python: moto.with_file_name("python"),
            store,
            _process: process,
        })
    }

    fn python(&self) -> Command {
        let mut command = Command::new(&self.python);
        command
            .env("AWS_ACCESS_KEY_ID", "someone")
            .env("AWS_SECRET_ACCESS_KEY", "something")
            .env("AWS_DEFAULT_REGION", "us-east-1");
        command
    }

    /// The example, which writes the object `nightly`.
    fn worker(&self, endpoint: &str) -> Command {
        let mut command = self.python();
        command
            .arg(example("python/s3_worker.py"))
            .args([endpoint, "reports", "nightly"]);
        command
    }

    /// The object `nightly`, as the store itself has it, past the proxy.
    fn stored(&self) -> String {
        let read = "import boto3, sys; print(boto3.client('s3', endpoint_url=sys.argv[1])\
                    .get_object(Bucket='reports', Key='nightly')['Body'].read().decode())";
        let store = format!("http://{}", self.store);
        let output = self.python().args(["-c", read, &store]).output().unwrap();
        let Output { stdout, stderr, .. } = output;
        String::from_utf8([stdout, stderr].concat())
            .unwrap()
            .trim()
            .to_owned()
    }
}

/// boto3, with the event hook of `examples/python/s3_worker.py`.
#[tokio::test(flavor = "multi_thread")]
async fn s3_by_boto3() {
    let Some(moto) = Moto::start() else { return };
    let fenced = Fenced::new(moto.store, "s3.toml", "s3/reports").await;
    let run = |token: u64, line: &str| work(&mut moto.worker(&fenced.url("")), token, line);
    let old = fenced.old.token().get();
    let (code, said) = run(old, "first\n");
    assert_eq!(code, Some(0), "{said}");
    let new = fenced.next().await;
    let (code, said) = run(new.token().get(), "second\n");
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(old, "late\n");
    assert_eq!(code, Some(76), "{said}");
    assert!(said.contains("answered 412"), "{said}");
    assert_eq!(moto.stored(), "second");
}

#[tokio::test(flavor = "multi_thread")]
async fn boto3_has_patience() {
    let Some(moto) = Moto::start() else { return };
    let mut fenced = Fenced::hasty(moto.store, "s3.toml", "s3/reports").await;
    let endpoint = fenced.url("");
    fenced.has_patience(|| moto.worker(&endpoint));
    assert_eq!(moto.stored(), "first");
}
