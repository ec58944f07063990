# SPDX-License-Identifier: Apache-2.0
"""What hosttune does by itself: systemd units, and what they run. At each boot:

hosttune-knobs    the settings of the profile, before nvidia-persistenced makes the GPUs ready
hosttune-devices  the driver's modules and nodes, the settings that the driver itself keeps, then the device rules of the
                  profile's containers, before Proxmox VE starts guests (pve-guests) or its HA manager does (pve-ha-lrm)
hosttune-stage    the profile's models into memory, which a reboot has emptied; beside the guests' start, since it takes
                  minutes: containers have the (still empty) mount from their start on

and while the machine runs:

hosttune-watch    the settings again, when a GPU comes back, was reset, or its driver is loaded (watch.py)
hosttune-recheck  by a timer: is all still as declared? Writes nothing; what is not stands in the machine's journal, and in
                  `systemctl --failed`

Those of the boot are bounded in time and nothing requires them: a guest's start is ordered after the first two and never
fails with them. The kernel parameter hosttune=off, or a file /etc/hosttune/off, stops them. They do what the profile's `mode`
lets them.
"""
