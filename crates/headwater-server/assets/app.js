// What every page starts.

import * as chart from './chart.js';
import * as dialog from './dialog.js';
import * as keys from './keys.js';
import * as live from './live.js';

document.documentElement.dataset.script = 'yes';
chart.start();
dialog.start();
keys.start();
live.start();
