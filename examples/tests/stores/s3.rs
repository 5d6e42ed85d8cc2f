//! S3, by boto3, on moto.

use crate::support::{Fenced, assert_good, assert_stale, curl, example, header, serve, work};
use palisade_examples::brought::brought;
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
    let mut fenced = Fenced::away(moto.store, "s3.toml", "s3/reports").await;
    let endpoint = fenced.url("");
    fenced.has_patience("first\n", || moto.worker(&endpoint));
    assert_eq!(moto.stored(), "first");
}

/// The ways to write that are no plain PUT: parts of an upload, copies, many deletes at once, and URLs that are signed beforehand.
#[tokio::test(flavor = "multi_thread")]
async fn s3s_other_ways_to_write() {
    let Some(moto) = Moto::start() else { return };
    let fenced = Fenced::new(moto.store, "s3.toml", "s3/reports").await;
    let old = fenced.old.token().get();
    let script = r#"
import boto3, os, sys, json
from botocore.config import Config
from botocore.exceptions import ClientError
def client(token):
    s3 = boto3.client("s3", endpoint_url=sys.argv[1], config=Config(retries={"total_max_attempts": 1}))
    s3.meta.events.register("before-sign.s3", lambda request, **_: request.headers.add_header("X-Fence-Token", token))
    return s3
old = client(os.environ["FENCE_TOKEN"])
if sys.argv[2] == "begin":
    old.put_object(Bucket="reports", Key="nightly", Body=b"first")
    upload = old.create_multipart_upload(Bucket="reports", Key="nightly")["UploadId"]
    part = old.upload_part(Bucket="reports", Key="nightly", UploadId=upload, PartNumber=1, Body=b"late")["ETag"]
    url = old.generate_presigned_url("put_object", Params={"Bucket": "reports", "Key": "nightly"})
    print(json.dumps([upload, part, url]))
else:
    upload, part, _ = json.loads(sys.argv[2])
    done = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    where = {"Bucket": "reports", "Key": "nightly"}
    for name, way in {
        "part": lambda: old.upload_part(**where, UploadId=upload, PartNumber=2, Body=b"late"),
        "complete": lambda: old.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=done),
        "copy": lambda: old.copy_object(**where, CopySource="reports/nightly", MetadataDirective="REPLACE"),
        "delete": lambda: old.delete_objects(Bucket="reports", Delete={"Objects": [{"Key": "nightly"}]}),
        "policy": lambda: old.put_bucket_policy(Bucket="reports", Policy="{}"),
    }.items():
        try:
            way()
            print(name, "passed")
        except ClientError as error:
            metadata = error.response["ResponseMetadata"]
            print(name, metadata["HTTPStatusCode"], metadata["HTTPHeaders"].get("x-fence-outcome"))
"#;
    let run = |token: u64, what: &str| {
        let mut command = moto.python();
        command.args(["-c", script, &fenced.url(""), what]);
        work(&mut command, token, "")
    };
    let (code, begun) = run(old, "begin");
    assert_eq!(code, Some(0), "{begun}");
    let signed: Vec<String> = serde_json::from_str(&begun).unwrap();
    let url = &signed[2];
    // A signed URL says who may write, and not who holds the lease.
    let put = |headers: &[&str], body: &str| {
        let plain = ["-X", "PUT", "-H", "Content-Type: text/plain", "-d", body];
        curl(&[&plain[..], headers, &[url]].concat())
    };
    assert_eq!(put(&[], "late").0, "428");
    let begin = fenced.url("/reports/nightly?uploads");
    assert_eq!(curl(&["-X", "POST", &begin]).0, "428");
    let new = fenced.next().await.token().get();
    let second = header(new);
    assert_good(&put(&["-H", &second], "second"));
    assert_stale(&put(&["-H", &header(old)], "late"));

    let (code, said) = run(old, begun.trim());
    assert_eq!(code, Some(0), "{said}");
    let refused = "part 412 refused\ncomplete 412 refused\ncopy 412 refused\ndelete 412 refused\npolicy 412 refused";
    assert_eq!(said.trim(), refused);
    assert_eq!(moto.stored(), "second");
    // What the old holder has begun is still there for the new one, who may take it over or end it.
    let (code, said) = run(new, begun.trim());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("part passed\ncomplete passed\n"), "{said}");
}
