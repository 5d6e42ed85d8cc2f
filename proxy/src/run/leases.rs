//! The lease store that the settings name, behind the gate.

use super::RunError;
use crate::{
    admin::{HoldersTask, LeaseStoreHealth, LeaseStoreProbe, NewEpochTask},
    authority::{
        Authority, EtcdAuthority, EtcdOptions, EtcdTls, Holder, Holders, Registration, Reports,
        SqliteAuthority, StoreHealth,
    },
    config::{Leases, Settings, Settle},
    gate::{Gate, GateSettings, News, Place},
    replicas::{self, GroupOptions, Replicas},
    state::State,
};
use palisade_lease::{clock::BootClock, name::LeaseName, sqlite};
use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};
use tokio::runtime::Handle;

/// The lease store.
#[derive(Clone)]
pub(super) enum LeaseStore {
    /// None: the highest token seen is believed.
    HighestSeen,
    Etcd(Arc<EtcdAuthority>),
    /// The same for one of several replicas.
    Group(Arc<EtcdAuthority>, Arc<Place>, Arc<Replicas>),
    Sqlite(Arc<SqliteAuthority>, PathBuf),
}

impl LeaseStore {
    /// The gate and the lease store behind it, which know each other.
    pub(super) fn with_gate(
        settings: &Settings,
        gate_settings: GateSettings,
        state: &Arc<State>,
        address: &str,
        handle: &Handle,
    ) -> Result<(Arc<Gate>, Self), RunError> {
        if let (Some(_), Leases::Etcd { endpoints, tls }) = (&settings.replicas, &settings.leases) {
            let options = etcd_options(settings, endpoints, *tls);
            handle
                .block_on(replicas::check_versions(options))
                .map_err(RunError::Config)?;
        }
        let mut made = Ok(Self::HighestSeen);
        let gate = Gate::new(
            Arc::clone(state) as _,
            Arc::new(BootClock),
            gate_settings,
            |gate| {
                made = Self::new(settings, state, address, gate);
                made.as_ref().ok().and_then(Self::authority)
            },
        );
        let store = made.map_err(super::system("starting to read the lease file"))?;
        let news = News(Arc::downgrade(&gate));
        // What an earlier run, or a file, reported before the gate was there.
        if state.frozen().is_some() {
            news.trusted(false);
        }
        if let Self::Etcd(etcd) = &store {
            etcd.run(handle, Arc::new(news));
        }
        match (store, group_options(settings, state, address)) {
            (Self::Etcd(etcd), Some(options)) => {
                let place = Place::new();
                gate.group(Arc::clone(&place));
                let replicas = Replicas::start(handle, &etcd, &gate, &place, options);
                Ok((gate, Self::Group(etcd, place, Arc::new(replicas))))
            }
            (store, _) => Ok((gate, store)),
        }
    }

    fn new(
        settings: &Settings,
        state: &Arc<State>,
        address: &str,
        gate: &Weak<Gate>,
    ) -> io::Result<Self> {
        Ok(match &settings.leases {
            Leases::HighestSeen => Self::HighestSeen,
            Leases::Etcd { endpoints, tls } => {
                let mut options = etcd_options(settings, endpoints, *tls);
                if settings.replicas.is_some() {
                    // The group's own task watches, and has member keys of its own.
                    options.watch = false;
                } else {
                    options.registration = Some(Registration {
                        name: settings.name.clone(),
                        address: address.to_owned(),
                    });
                }
                Self::Etcd(EtcdAuthority::new(options, Arc::clone(state)))
            }
            Leases::Sqlite(path) => {
                let news = Arc::new(News(gate.clone()));
                let file = SqliteAuthority::start(reader(path.clone()), Arc::clone(state), news)?;
                Self::Sqlite(file, path.clone())
            }
        })
    }

    fn authority(&self) -> Option<Arc<dyn Authority>> {
        match self {
            Self::HighestSeen => None,
            Self::Etcd(etcd) | Self::Group(etcd, ..) => Some(Arc::clone(etcd) as _),
            Self::Sqlite(file, _) => Some(Arc::clone(file) as _),
        }
    }

    /// For readiness.
    pub(super) fn probe(&self) -> Option<LeaseStoreProbe> {
        let store = self.clone();
        let health = move || match &store {
            Self::HighestSeen => None,
            Self::Etcd(etcd) | Self::Group(etcd, ..) => Some(etcd.health()),
            Self::Sqlite(file, _) => Some(file.health()),
        };
        health()?;
        let place = match self {
            Self::Group(_, place, _) => Some(Arc::clone(place)),
            _ => None,
        };
        Some(Box::new(move || LeaseStoreHealth {
            not_joined: place
                .as_ref()
                .and_then(|place| place.away())
                .map(|why| why.to_string()),
            ..health().map(shown).unwrap_or_default()
        }))
    }

    /// Who holds what, for people who look.
    pub(super) fn holders(&self) -> HoldersTask {
        let store = self.clone();
        Box::new(move || {
            let store = store.clone();
            Box::pin(async move {
                match store {
                    Self::Etcd(etcd) | Self::Group(etcd, ..) => etcd.holders().await,
                    Self::Sqlite(_, path) => {
                        let read = tokio::task::spawn_blocking(move || holders_in(&path)).await;
                        read.map_err(|error| error.to_string())?
                    }
                    Self::HighestSeen => Ok(Holders::new()),
                }
            })
        })
    }

    /// `palisade new-epoch`.
    pub(super) fn new_epoch(&self) -> NewEpochTask {
        let store = self.clone();
        Box::new(move |advance| {
            let store = store.clone();
            Box::pin(async move {
                match &store {
                    Self::Etcd(etcd) | Self::Group(etcd, ..) => etcd
                        .new_epoch(advance)
                        .await
                        .map_err(|error| error.to_string()),
                    Self::Sqlite(file, path) => {
                        let path = path.clone();
                        let push = move |past| {
                            sqlite::advance_past(&path, past).map_err(|error| error.to_string())
                        };
                        file.new_epoch(push)
                            .await
                            .map_err(|error| error.to_string())
                    }
                    Self::HighestSeen => {
                        Err("there is no lease store whose epoch could end".to_owned())
                    }
                }
            })
        })
    }

    /// Ends it.
    pub(super) async fn stop(&self) {
        match self {
            Self::HighestSeen => {}
            Self::Etcd(etcd) => etcd.stop().await,
            Self::Group(etcd, _, replicas) => {
                replicas.leave().await;
                etcd.stop().await;
            }
            Self::Sqlite(file, _) => file.stop(),
        }
    }
}

fn holders_in(file: &Path) -> Result<Holders, String> {
    let holders = sqlite::Reader::open(file).and_then(|mut reader| reader.holders(10_000));
    let holders = holders.map_err(|error| error.to_string())?;
    Ok(holders
        .into_iter()
        .map(|(name, token, record)| {
            let token = token.get();
            (Arc::from(name), Holder { token, record })
        })
        .collect())
}

fn shown(health: StoreHealth) -> LeaseStoreHealth {
    let why = || {
        health
            .failure
            .as_ref()
            .map_or_else(|| "not asked yet".to_owned(), ToString::to_string)
    };
    LeaseStoreHealth {
        away: (!health.up).then(why),
        changed: health.changed.map(|why| why.to_string()),
        not_joined: None,
    }
}

/// What one of several replicas is told of its group.
fn group_options(settings: &Settings, state: &Arc<State>, address: &str) -> Option<GroupOptions> {
    let replicas = settings.replicas.as_ref()?;
    Some(GroupOptions {
        group: replicas.group.clone(),
        session_ttl: replicas.session_ttl,
        max_pause: replicas.max_pause,
        settle: match settings.fence.settle {
            Settle::After(settle) => Some(settle),
            Settle::Manual => None,
        },
        address: address.to_owned(),
        state_id: Arc::clone(state.id()),
    })
}

/// How etcd is reached.
pub(super) fn etcd_options(settings: &Settings, endpoints: &[String], tls: bool) -> EtcdOptions {
    let etcd = &settings.etcd;
    let mut options = EtcdOptions::new(endpoints.iter().cloned());
    options.prefix.clone_from(&etcd.prefix);
    options.user = etcd.user.clone().zip(etcd.password_file.clone());
    options.tls = tls.then(|| EtcdTls {
        ca: etcd.ca.clone(),
        identity: etcd.cert.clone().zip(etcd.key.clone()),
    });
    options
}

/// Reads a lease file; opened at the first question, and anew after a failure or when another file stands there.
fn reader(path: PathBuf) -> crate::authority::ReadGrant {
    let mut open: Option<(sqlite::Reader, (u64, u64))> = None;
    Box::new(move |scope| {
        let name = LeaseName::parse(scope).map_err(|error| error.to_string())?;
        let file =
            std::fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let file = (file.dev(), file.ino());
        let mut reader = match open.take() {
            Some((reader, opened)) if opened == file => reader,
            _ => sqlite::Reader::open(&path).map_err(|error| error.to_string())?,
        };
        let grant = reader.grant(&name).map_err(|error| error.to_string())?;
        open = Some((reader, file));
        Ok(grant)
    })
}
