// The door to the service. The token lives in this tab's session storage and in one header, never in an address.

const KEY = "situate-token";
const dialog = document.getElementById("token");
let asking = null;

/** The answer of a route as an object; throws an Error with the service's sentence. */
export async function ask(route, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const address = given.length ? `${route}?${new URLSearchParams(given)}` : route;
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const response = await request(address, token, signal);
    if (response.status === 401) {
      await askForToken(token);
      continue;
    }
    const record = await response.json().catch(() => ({ error: `the service answered with status ${response.status}` }));
    if (!response.ok) throw new Error(record.error ?? `the service answered with status ${response.status}`);
    return record;
  }
}

async function request(address, token, signal) {
  try {
    return await fetch(address, { headers: token ? { Authorization: `Bearer ${token}` } : {}, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the service does not answer; is it running?");
  }
}

/** Show the dialog once, however many requests were refused at the same time. */
function askForToken(refused) {
  if (refused !== sessionStorage.getItem(KEY)) return Promise.resolve();
  asking ??= new Promise((resolve) => {
    const field = document.getElementById("token-value");
    document.getElementById("token-wrong").textContent = refused ? "That token is not the right one." : "";
    field.value = "";
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => {
      // A header takes visible ASCII only, and so does the service.
      sessionStorage.setItem(KEY, field.value.trim().replace(/[^!-~]/g, "?"));
      field.value = "";
      asking = null;
      resolve();
    };
    dialog.showModal();
    field.focus();
  });
  return asking;
}
