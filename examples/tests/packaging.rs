//! What is shipped beside the programs: units, packages, images, manifests. Each is read by the tool that it is for, where that
//! needs no network; the commands in them are run, and the probes are answered by a real proxy.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs it"
)]

use palisade_examples::brought::brought;
use palisade_loadtest::{
    origin::Origin,
    proxy::Palisade,
    servers::{Etcd, get, program, wait_for},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn packaging(name: &str) -> String {
    let path = root().join("packaging").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Output {
    Command::new(program.as_ref())
        .args(arguments)
        .output()
        .unwrap()
}

fn python() -> Option<PathBuf> {
    brought("venv/bin/python")
}

/// A YAML file as JSON, each of its documents.
fn documents(file: &Path) -> Option<Vec<serde_json::Value>> {
    let script =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let output = run(python()?, &["-c", script, &file.display().to_string()]);
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// The settings are those of `text`, as `palisade check` sees it.
fn accepted(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("palisade.toml");
    fs::write(&file, text).unwrap();
    let output = run(
        program("palisade"),
        &["check", "--config", &file.display().to_string()],
    );
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The value of a setting in what `palisade check` shows, such as `key = "10s"  # where it stands`.
fn setting<'a>(shown: &'a str, key: &str) -> &'a str {
    let line = shown
        .lines()
        .find(|line| line.split(' ').next() == Some(key))
        .unwrap_or_else(|| panic!("no {key} in {shown}"));
    line.split('"')
        .nth(1)
        .unwrap_or_else(|| panic!("{line}: it has no value"))
}

/// A number of seconds, such as `25s`.
fn seconds(text: &str) -> u64 {
    text.trim_end_matches('s').parse().unwrap()
}

/// How long a stopping proxy may take with these settings.
fn ends_in(shown: &str) -> u64 {
    seconds(setting(shown, "drain_delay")) + seconds(setting(shown, "shutdown_timeout"))
}

const RUN: [&str; 3] = ["run", "--config", "/etc/palisade/palisade.toml"];

#[test]
fn the_units_are_accepted_hardened_and_about_the_address_of_the_settings() {
    let shown = accepted(&packaging("palisade.toml"));
    let socket = packaging("systemd/palisade.socket");
    let address = socket
        .lines()
        .find_map(|line| line.strip_prefix("ListenStream="))
        .unwrap();
    assert!(shown.contains(&format!("[\"{address}\"]")), "{shown}");
    let unit = packaging("systemd/palisade.service");
    let of = |key: &str| {
        unit.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .unwrap_or_else(|| panic!("no {key}"))
    };
    assert_eq!(
        of("ExecStart"),
        format!("/usr/bin/palisade {}", RUN.join(" "))
    );
    assert_eq!(of("ExecReload"), "/bin/kill -HUP $MAINPID");
    assert_eq!(of("Type"), "notify");
    assert_eq!(of("ProtectSystem"), "strict");
    assert!(of("WatchdogSec").parse::<u64>().unwrap() > 0);
    for key in ["Requires", "Also"] {
        assert_eq!(of(key), "palisade.socket", "{key}");
    }
    assert!(seconds(of("TimeoutStopSec")) > ends_in(&shown));
    let state = format!("/var/lib/{}", of("StateDirectory"));
    assert_eq!(setting(&shown, "state"), state);
    // Started again after these, it would end again.
    let wrong = ["--nonsense", "--config=/nowhere"].map(|argument| {
        let code = run(program("palisade"), &["run", argument]).status.code();
        code.unwrap().to_string()
    });
    assert_eq!(of("RestartPreventExitStatus"), wrong.join(" "));
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("skipped: systemd-analyze is not installed (Debian's systemd)");
        return;
    }
    // The program stands elsewhere here.
    let folder = tempfile::tempdir().unwrap();
    let ours = program("palisade").display().to_string();
    let lease = program("palisade-lease").display().to_string();
    let put = |name: &str, text: &str| {
        let text = text
            .replace("/usr/bin/palisade-lease ", &format!("{lease} "))
            .replace("/usr/bin/palisade ", &format!("{ours} "));
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let service = put("palisade.service", &unit);
    let mut files = vec![service.clone(), put("palisade.socket", &socket)];
    for name in ["nightly-report.service", "nightly-report.timer"] {
        let path = root().join("examples/systemd").join(name);
        files.push(put(name, &fs::read_to_string(path).unwrap()));
    }
    let verify = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(&files)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&verify.stderr).into_owned();
    // It looks at what else is installed on the machine, too; and it passes over what it does not know with a word.
    let about_ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("palisade") || line.contains("nightly"))
        .collect();
    assert!(verify.status.success() && about_ours.is_empty(), "{said}");
    // 0 is shut away, 10 is bare; tenths, times ten.
    let exposed = run(
        "systemd-analyze",
        &["security", "--offline=true", "--threshold=15", &service],
    );
    assert!(
        exposed.status.success(),
        "{}",
        String::from_utf8_lossy(&exposed.stdout)
    );
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display().to_string();
    for name in ["palisade", "palisade-lease"] {
        assert!(run(program(name), &["man", &dir]).status.success());
        let help = run(program(name), &["--help"]).stdout;
        let help = String::from_utf8(help).unwrap();
        let commands = help.split("Commands:\n").nth(1).unwrap().lines();
        // What stands further in is the rest of a description.
        let commands = commands
            .map_while(|line| line.strip_prefix("  "))
            .filter(|line| !line.starts_with(' '))
            .filter_map(|line| line.split_whitespace().next());
        let mut pages = 0;
        for command in commands.filter(|command| *command != "help") {
            let page =
                fs::read_to_string(folder.path().join(format!("{name}-{command}.1"))).unwrap();
            assert!(
                page.contains(".TH") && page.contains(".SH SYNOPSIS"),
                "{page}"
            );
            pages += 1;
        }
        assert!(pages > 5, "{help}");
        assert!(folder.path().join(format!("{name}.1")).exists());
    }
    let nowhere = run(program("palisade"), &["man", "/nowhere"]);
    let said = String::from_utf8(nowhere.stderr).unwrap();
    assert!(said.starts_with("palisade: /nowhere: "), "{said}");
}

/// `cargo deb` itself takes a release build; here the script runs with our programs and a `cargo-deb` that only says what it was
/// asked for, and what the packages are told to take is there then.
#[test]
fn what_the_debian_packages_hold_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["scripts", "bin", "target/release"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::copy(root().join("scripts/deb.sh"), at("scripts/deb.sh")).unwrap();
    for name in ["palisade", "palisade-lease"] {
        let release = at("target/release").join(name);
        std::os::unix::fs::symlink(program(name), release).unwrap();
    }
    let tool = at("bin/cargo-deb");
    fs::write(&tool, "#!/bin/sh\necho \"$@\"\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
    let made = Command::new("sh")
        .arg(at("scripts/deb.sh"))
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let asked = String::from_utf8(made.stdout).unwrap();
    let packages: Vec<&str> = asked
        .lines()
        .filter_map(|line| line.split_once("--package ")?.1.split(' ').next())
        .collect();
    assert_eq!(packages, ["palisade", "palisade-lease"]);
    for (package, name) in [("proxy", "palisade"), ("lease", "palisade-lease")] {
        let text = fs::read_to_string(root().join(package).join("Cargo.toml")).unwrap();
        let assets = text
            .split("assets = [")
            .nth(1)
            .unwrap()
            .split("\n]")
            .next()
            .unwrap();
        let mut installed = BTreeSet::new();
        for line in assets.lines().filter(|line| line.contains('[')) {
            let words: Vec<&str> = line.split('"').collect();
            let (source, to) = (words[1], words[3]);
            let file = match source.split_once("target/") {
                Some((_, built)) => at("target").join(built),
                None => root().join(package).join(source),
            };
            // The last part may have a star: some file has to be there that it stands for.
            let wanted = file.file_name().unwrap().to_str().unwrap();
            let (start, end) = wanted.split_once('*').unwrap_or((wanted, ""));
            let found = fs::read_dir(file.parent().unwrap())
                .unwrap_or_else(|error| panic!("{package}: {source}: {error}"))
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .any(|name| name.starts_with(start) && name.ends_with(end));
            assert!(found, "{package}: {source}");
            let (folder, file) = to.rsplit_once('/').unwrap();
            let file = if file.is_empty() { wanted } else { file };
            installed.insert(format!("{folder}/{file}"));
        }
        for file in [
            format!("usr/bin/{name}"),
            format!("usr/share/man/man1/{name}*.1"),
            format!("usr/share/bash-completion/completions/{name}"),
            format!("usr/share/zsh/vendor-completions/_{name}"),
            format!("usr/share/fish/vendor_completions.d/{name}.fish"),
        ] {
            assert!(installed.contains(&file), "{file} is not in {installed:?}");
        }
        // Each shell gets what is written for it.
        let completions = |file: String| {
            let file = at("target/packaging").join(name).join(file);
            fs::read(file).unwrap()
        };
        for (shell, file, is_for) in [
            ("bash", format!("{name}.bash"), format!("default {name}\n")),
            ("zsh", format!("_{name}"), format!("#compdef {name}\n")),
            (
                "fish",
                format!("{name}.fish"),
                format!("complete -c {name} "),
            ),
        ] {
            let said = run(program(name), &["completions", shell]);
            assert!(
                said.status.success() && said.stdout == completions(file),
                "{shell}"
            );
            let said = String::from_utf8(said.stdout).unwrap();
            assert!(said.contains(&is_for), "{shell}: {said}");
        }
    }
}

#[test]
fn the_image_runs_as_nobody_and_asks_itself_how_it_is() {
    let file = packaging("docker/Dockerfile");
    let last = |word: &str| {
        let mut lines = file.lines().filter(|line| line.starts_with(word));
        lines
            .next_back()
            .unwrap_or_else(|| panic!("no {word}"))
            .to_owned()
    };
    assert_eq!(last("USER"), "USER 65532:65532");
    for line in file.lines().filter(|line| line.starts_with("FROM")) {
        assert!(
            line.contains(':') && !line.contains(":latest"),
            "{line}: which version?"
        );
    }
    // The words of a command in JSON, as the engine runs it.
    let words = |line: &str| -> Vec<String> {
        serde_json::from_str(&line[line.find('[').unwrap()..]).unwrap()
    };
    let entry = words(&last("ENTRYPOINT"));
    let (health, command) = (words(&last("HEALTHCHECK")), words(&last("CMD")));
    assert_eq!(
        (entry[0].as_str(), health[0].as_str()),
        ("/usr/bin/palisade", "/usr/bin/palisade")
    );
    let shown = accepted(&packaging("docker/palisade.toml"));
    assert_eq!(
        (&command[..], &health[2..]),
        (&RUN.map(str::to_owned)[..], &command[1..])
    );
    let state = setting(&shown, "state");
    assert_eq!(last("VOLUME"), format!("VOLUME {state}"));
    for copied in [
        format!("COPY --from=build --chown=65532:65532 /empty/state {state}"),
        format!(
            "COPY --from=build /build/packaging/docker/palisade.toml {}",
            RUN[2]
        ),
    ] {
        assert!(file.lines().any(|line| line == copied), "no {copied}");
    }
    let ports = ["listen", "admin"].map(|key| {
        let (host, port) = setting(&shown, key).rsplit_once(':').unwrap();
        assert_eq!(host, "0.0.0.0", "{key} is reached from outside");
        port.to_owned()
    });
    assert_eq!(last("EXPOSE"), format!("EXPOSE {}", ports.join(" ")));
    let needs = env!("CARGO_PKG_RUST_VERSION");
    assert!(last("FROM docker.io/library/rust").contains(&format!("rust:{needs}-")));
    // The same commands, with a proxy that runs and after it has gone.
    let (etcd, origin) = (Etcd::start().unwrap(), Origin::tcp().unwrap());
    let mut proxy = Palisade::new(&format!("http://{}", origin.address()))
        .unwrap()
        .set("leases", etcd.url());
    proxy.start().unwrap();
    assert_eq!((command[0].as_str(), health[1].as_str()), ("run", "health"));
    let state = proxy.state().display().to_string();
    let ask = || run(program("palisade"), &["health", "--state", &state]);
    wait_for("readiness", || {
        let said = ask();
        (said.status.success() && said.stdout == b"ready\n").then_some(())
    });
    drop(origin);
    // Its thread may still be about to close the address.
    let not = wait_for("no readiness", || {
        let said = ask();
        (!said.status.success()).then_some(said)
    });
    let said = String::from_utf8_lossy(&not.stderr).into_owned();
    assert_eq!(not.status.code(), Some(1));
    assert!(
        said.contains("upstream") && said.contains("can't be reached"),
        "{said}"
    );
    proxy.stop();
    assert_eq!(ask().status.code(), Some(69));
}

#[test]
fn the_store_of_the_compose_file_is_reached_through_palisade_only() {
    let Some(documents) = documents(&root().join("packaging/docker/compose.yaml")) else {
        return;
    };
    let services = documents[0]["services"].as_object().unwrap();
    let of = |name: &str| services[name]["networks"].clone();
    assert_eq!(of("store"), serde_json::json!(["back"]));
    assert_eq!(documents[0]["networks"]["back"]["internal"], true);
    for (name, service) in services {
        let shares = of(name).as_array().unwrap().contains(&"back".into());
        assert_eq!(shares, name == "store" || name == "palisade", "{name}");
        assert!(
            name == "palisade" || service["ports"].is_null(),
            "{name} is open to the host"
        );
    }
    // What its settings name is there, by that name and on a network that both are on.
    let own = &services["palisade"];
    let shown = accepted(&packaging("docker/palisade.toml"));
    for (name, value) in own["environment"].as_object().unwrap() {
        let key = name.strip_prefix("PALISADE_").unwrap().to_lowercase();
        let value = value.as_str().unwrap();
        assert_ne!(setting(&shown, &key), "", "{name} is no setting");
        let host = value
            .split("://")
            .nth(1)
            .unwrap()
            .split(':')
            .next()
            .unwrap();
        let theirs = of(host).as_array().unwrap().clone();
        let ours = of("palisade").as_array().unwrap().clone();
        assert!(
            theirs.iter().any(|network| ours.contains(network)),
            "{host}"
        );
    }
    let floors = own["volumes"][0].as_str().unwrap().split_once(':').unwrap();
    assert_eq!(floors.1, setting(&shown, "state"));
    assert!(documents[0]["volumes"].get(floors.0).is_some());
    assert!(seconds(own["stop_grace_period"].as_str().unwrap()) > ends_in(&shown));
    for port in own["ports"].as_array().unwrap() {
        assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{port}");
    }
    let folder = root()
        .join("packaging/docker")
        .join(services["palisade"]["build"]["context"].as_str().unwrap());
    assert!(
        folder
            .join(
                services["palisade"]["build"]["dockerfile"]
                    .as_str()
                    .unwrap()
            )
            .exists()
    );
}

/// What would be lost between the parts of the manifest: time to end in, the only way to the store, and what all replicas share.
#[test]
fn the_replicas_of_the_manifest_end_in_time_and_are_the_only_way_to_the_store() {
    let file = root().join("packaging/kubernetes/replicas.yaml");
    let Some(all) = documents(&file) else { return };
    let named = |kind: &str, name: &str| {
        all.iter()
            .find(|document| document["kind"] == kind && document["metadata"]["name"] == name)
            .unwrap()
    };
    let settings = named("ConfigMap", "palisade")["data"]["palisade.toml"]
        .as_str()
        .unwrap();
    let shown = accepted(settings);
    let set = &named("StatefulSet", "palisade")["spec"];
    assert!(set["replicas"].as_u64().unwrap() > 1);
    assert_ne!(setting(&shown, "group"), "");
    let pod = &set["template"]["spec"];
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > ends_in(&shown));
    in_its_place(pod, &pod["containers"][0], set, &shown);
    let labels = &set["template"]["metadata"]["labels"];
    for (kind, name) in [
        ("PodDisruptionBudget", "palisade"),
        ("NetworkPolicy", "palisade"),
    ] {
        let spec = &named(kind, name)["spec"];
        let selector = match kind {
            "NetworkPolicy" => &spec["podSelector"],
            _ => &spec["selector"],
        };
        assert_eq!(&selector["matchLabels"], labels, "{kind}");
    }
    let budget = &named("PodDisruptionBudget", "palisade")["spec"];
    assert_eq!(budget["maxUnavailable"], 1, "the others have to stay");
    let headless = set["serviceName"].as_str().unwrap();
    for name in ["reports", headless] {
        assert_eq!(
            &named("Service", name)["spec"]["selector"],
            labels,
            "{name}"
        );
    }
    assert_eq!(&set["selector"]["matchLabels"], labels);
    admin_is_for_prometheus(named("NetworkPolicy", "palisade"), &shown);
    let store = &named("NetworkPolicy", "store")["spec"]["ingress"];
    assert_eq!(store.as_array().unwrap().len(), 1);
    let replicas_only = serde_json::json!([{ "podSelector": { "matchLabels": labels } }]);
    assert_eq!(store[0]["from"], replicas_only);
    let port = store[0]["ports"][0]["port"].as_u64().unwrap();
    assert!(settings.contains(&format!(":{port}\"")), "the store's port");
}

/// Palisade in a pod: its settings and its floors are where it looks for them, the floors on a disk that outlives the pod and that no
/// other pod has; the probes are at the admin address, and a datastore that is away does not have Palisade started anew.
fn in_its_place(pod: &Value, container: &Value, set: &Value, shown: &str) {
    assert_eq!(container["args"], serde_json::json!(RUN));
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let mounts = container["volumeMounts"].as_array().unwrap();
    let mounted = |path: &str| {
        let mount = mounts.iter().find(|mount| mount["mountPath"] == path);
        &mount.unwrap_or_else(|| panic!("nothing at {path}"))["name"]
    };
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = |name: &Value| volumes.iter().find(|volume| volume["name"] == *name);
    let settings = volume(mounted("/etc/palisade")).unwrap();
    assert_eq!(settings["configMap"]["name"], "palisade");
    let floors = mounted(setting(shown, "state"));
    assert!(volume(floors).is_none(), "floors outlive a pod");
    let claims = set["volumeClaimTemplates"].as_array().unwrap();
    let claim = claims
        .iter()
        .find(|claim| claim["metadata"]["name"] == *floors);
    let access = claim.unwrap()["spec"]["accessModes"].as_array().unwrap();
    assert_eq!(access[..], ["ReadWriteOncePod"]);
    let admin = setting(shown, "admin").rsplit_once(':').unwrap().1;
    let ports = container["ports"].as_array().unwrap();
    for (probe, path) in [
        ("startupProbe", "/livez"),
        ("livenessProbe", "/livez"),
        ("readinessProbe", "/readyz"),
    ] {
        let get = &container[probe]["httpGet"];
        assert_eq!(get["path"], path, "{probe}");
        let port = ports.iter().find(|port| port["name"] == get["port"]);
        assert_eq!(port.unwrap()["containerPort"].to_string(), admin, "{probe}");
    }
}

/// Whoever may reach the port for workers may not reach the admin address.
fn admin_is_for_prometheus(policy: &Value, shown: &str) {
    let admin = setting(shown, "admin").rsplit_once(':').unwrap().1;
    let rules = policy["spec"]["ingress"].as_array().unwrap();
    for rule in rules {
        for port in rule["ports"].as_array().unwrap() {
            let is_admin = port["port"].as_u64() == admin.parse().ok();
            assert_eq!(rule["from"].is_array(), is_admin, "{rule}");
        }
    }
    assert_eq!(rules.len(), 2);
}

#[test]
fn the_manifests_are_valid_and_their_probes_are_answered() {
    let Some(python) = python() else { return };
    let file = root().join("packaging/kubernetes/sidecar.yaml");
    let others = [
        "packaging/kubernetes/replicas.yaml",
        "examples/kubernetes/cronjob.yaml",
    ];
    for file in others.map(|name| root().join(name)).iter().chain([&file]) {
        let validate = "import sys, kubernetes_validate as k, yaml\nfor d in yaml.safe_load_all(open(sys.argv[1])): k.validate(d, '1.29', strict=True)";
        let output = run(&python, &["-c", validate, &file.display().to_string()]);
        assert!(
            output.status.success(),
            "{}: {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let all = documents(&file).unwrap();
    let kind = |kind: &str| {
        all.iter()
            .find(|document| document["kind"] == kind)
            .unwrap()
    };
    let pod = &kind("StatefulSet")["spec"]["template"]["spec"];
    let sidecar = &pod["initContainers"][0];
    assert_eq!(
        sidecar["restartPolicy"], "Always",
        "only then is it a sidecar"
    );
    let settings = kind("ConfigMap")["data"]["palisade.toml"].as_str().unwrap();
    let shown = accepted(settings);
    let set = &kind("StatefulSet")["spec"];
    assert_eq!(set["replicas"], 1, "floors belong to a disk");
    in_its_place(pod, sidecar, set, &shown);
    admin_is_for_prometheus(kind("NetworkPolicy"), &shown);
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > ends_in(&shown));
    // The store listens where Palisade looks for it, in a folder that both have.
    let store = &pod["containers"][0];
    let upstream = setting(&shown, "upstream");
    assert_eq!(store["args"][1], upstream);
    for container in [sidecar, store] {
        let mounts = container["volumeMounts"].as_array().unwrap();
        let socket = mounts
            .iter()
            .find(|mount| mount["name"] == "socket")
            .unwrap();
        let folder = socket["mountPath"].as_str().unwrap();
        assert_eq!(
            upstream.rsplit_once('/').unwrap().0,
            format!("unix:{folder}")
        );
    }
    // A real proxy over a unix socket, with the routes of the manifest.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("store.sock");
    let origin = Origin::unix(&socket).unwrap();
    let etcd = Etcd::start().unwrap();
    let mut proxy = Palisade::new(&format!("unix:{}", socket.display()))
        .unwrap()
        .set("leases", etcd.url())
        .routes(&settings[settings.find("[[route]]").unwrap()..])
        .unwrap();
    proxy.start().unwrap();
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let path = sidecar[probe]["httpGet"]["path"].as_str().unwrap();
        wait_for(probe, || {
            let answer = get(proxy.admin(), path).ok()?;
            answer.starts_with("HTTP/1.1 200").then_some(())
        });
    }
    // Without the store it is not ready, and still alive: it starts before the store.
    drop(origin);
    let answer = |probe: &str| {
        let path = sidecar[probe]["httpGet"]["path"].as_str().unwrap();
        get(proxy.admin(), path).unwrap()
    };
    wait_for("no readiness", || {
        answer("readinessProbe")
            .starts_with("HTTP/1.1 503")
            .then_some(())
    });
    for probe in ["startupProbe", "livenessProbe"] {
        assert!(answer(probe).starts_with("HTTP/1.1 200"), "{probe}");
    }
}
