//! A small honest cloud: instances made on demand, load balancers as the journal tells.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use bulkhead_proto::v1;

use crate::{
    clock,
    journal::{Change, Entry, Journal, Write},
};

/// The cloud behind one plugin or several. Clones are the same cloud.
#[derive(Debug, Clone)]
pub struct Cloud {
    journal: Journal,
    instances: Arc<Mutex<BTreeMap<String, Option<v1::Instance>>>>,
}

/// A load balancer as the cloud has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Balancer {
    /// What it is reached by.
    pub address: String,
    /// As `TCP/80`, sorted.
    pub ports: Vec<String>,
    /// Provider IDs, sorted.
    pub targets: Vec<String>,
}

impl Cloud {
    /// A cloud that holds what the journal says.
    pub fn new(journal: Journal) -> Self {
        Self {
            journal,
            instances: Arc::default(),
        }
    }

    /// Its journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Makes the instance of the node `name` another than [`instance`]; `None`: there is none.
    pub fn set_instance(&self, name: &str, instance: Option<v1::Instance>) {
        let mut instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.insert(name.to_owned(), instance);
    }

    /// The instance of the node `name`: one for every name, unless a test said otherwise.
    pub fn instance(&self, name: &str) -> Option<v1::Instance> {
        let instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances
            .get(name)
            .cloned()
            .unwrap_or_else(|| Some(instance(name)))
    }

    /// The load balancers by mark.
    ///
    /// # Errors
    ///
    /// If the journal cannot be read.
    pub fn balancers(&self) -> Result<BTreeMap<String, Balancer>> {
        let mut balancers: BTreeMap<String, Balancer> = BTreeMap::new();
        for write in self.journal.writes()? {
            match write.change {
                Change::Created { mark, address } => {
                    balancers.insert(
                        mark,
                        Balancer {
                            address,
                            ..Balancer::default()
                        },
                    );
                }
                Change::Configured { mark, ports, targets } => {
                    let balancer = balancers.entry(mark).or_default();
                    (balancer.ports, balancer.targets) = (ports, targets);
                }
                Change::Deleted { mark } => {
                    balancers.remove(&mark);
                }
            }
        }
        Ok(balancers)
    }

    /// Makes a load balancer and returns its address, which is no other's, not even a former one's.
    ///
    /// # Errors
    ///
    /// If the journal cannot be read or written.
    pub fn create(&self, plugin: &str, began: u64, mark: &str) -> Result<String> {
        let address = format!("203.0.113.{}", self.journal.creates()? + 1);
        let change = Change::Created {
            mark: mark.to_owned(),
            address: address.clone(),
        };
        self.write(plugin, began, change)?;
        Ok(address)
    }

    /// Writes down a change that was started at `began` and is done now.
    ///
    /// # Errors
    ///
    /// If the journal cannot be written.
    pub fn write(&self, plugin: &str, began: u64, change: Change) -> Result<()> {
        let write = Write {
            plugin: plugin.to_owned(),
            began,
            ended: clock::boot_nanos(),
            change,
        };
        self.journal.add(Entry::Wrote(write))
    }
}

/// The provider ID of the node `name`'s instance.
pub fn provider_id(name: &str) -> String {
    format!("scripted://{name}")
}

/// The instance that every node has unless a test says otherwise.
pub fn instance(name: &str) -> v1::Instance {
    let address = |kind: v1::AddressType, address: String| v1::Address {
        r#type: kind.into(),
        address,
    };
    v1::Instance {
        provider_id: provider_id(name),
        instance_id: name.to_owned(),
        name: name.to_owned(),
        instance_type: "s1.small".to_owned(),
        zone: "zone-a".to_owned(),
        region: "region-1".to_owned(),
        addresses: vec![
            address(v1::AddressType::InternalIp, internal_ip(name)),
            address(v1::AddressType::Hostname, name.to_owned()),
        ],
        address_source: v1::AddressSource::Cloud.into(),
        power_state: v1::PowerState::Running.into(),
        ..v1::Instance::default()
    }
}

/// The same for the same name; two names may share one, which nobody minds here.
fn internal_ip(name: &str) -> String {
    let [high, middle, low] = name.bytes().fold([0_u8; 3], |[high, middle, low], byte| {
        [
            high.wrapping_mul(31).wrapping_add(middle),
            middle.wrapping_mul(31).wrapping_add(low),
            low.wrapping_mul(31).wrapping_add(byte),
        ]
    });
    format!("10.{high}.{middle}.{low}")
}
