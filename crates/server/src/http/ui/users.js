// Users, groups and their roles.
import { encode, get, request } from "./api.js";
import { button, dialog, field, fill, h, table, toast } from "./dom.js";

export const title = "Users";
export const takes = [];

const names = (text) => text.split(",").map((one) => one.trim()).filter(Boolean).join(",");

function roleText(role) {
  const places = [role.bucket_name, role.scope_name, role.collection_name].filter(Boolean);
  // `*` behind a name is what the name alone means.
  while (places.length > 1 && places[places.length - 1] === "*") places.pop();
  const place = places.join(":");
  return place ? `${role.role}[${place}]` : role.role;
}
// Roles with which users are created, changed and deleted.
const MANAGERS = ["admin", "security_admin"];
// Those of groups come with the group.
const own = (user) => user.roles.filter((role) => !role.origins || role.origins.some((from) => from.type === "user")).map(roleText).join(", ");

async function editUser(user, context) {
  const name = h("input", { required: true, value: user ? user.id : "", disabled: !!user, spellcheck: "false", autocapitalize: "none" });
  const password = h("input", { type: "password", autocomplete: "new-password", required: !user });
  const full = h("input", { value: user ? user.name || "" : "" });
  const roles = h("input", { value: user ? own(user) : "", spellcheck: "false", placeholder: "data_reader[default], data_writer[default:scope]" });
  const groups = h("input", { value: user ? (user.groups || []).join(", ") : "", spellcheck: "false" });
  const done = await dialog({
    title: user ? `User ${user.id}` : "Create a user", action: "Save",
    content: h("div", null, field("Name", name), field("Password", password, user ? "Empty: stays as it is" : null), field("Full name", full), field("Roles", roles, "With commas between them; [bucket:scope:collection] says where"), field("Groups", groups)),
    act: () => request("PUT", `/settings/rbac/users/local/${encode(name.value)}`, { form: { ...(password.value ? { password: password.value } : {}), name: full.value, roles: names(roles.value), groups: names(groups.value) } }),
  });
  if (done) { toast("The user was saved."); context.reload(); }
}

async function editGroup(group, context) {
  const name = h("input", { required: true, value: group ? group.id : "", disabled: !!group, spellcheck: "false" });
  const text = h("input", { value: group ? group.description || "" : "" });
  const roles = h("input", { value: group ? group.roles.map(roleText).join(", ") : "", spellcheck: "false" });
  const done = await dialog({
    title: group ? `Group ${group.id}` : "Create a group", action: "Save", content: h("div", null, field("Name", name), field("Description", text), field("Roles", roles)),
    act: () => request("PUT", `/settings/rbac/groups/${encode(name.value)}`, { form: { description: text.value, roles: names(roles.value) } }),
  });
  if (done) { toast("The group was saved."); context.reload(); }
}

const remove = (what, id, path, context) => async () => {
  const done = await dialog({ title: `Delete the ${what}`, text: id, action: "Delete", danger: true, act: () => request("DELETE", `${path}${encode(id)}`) });
  if (done) { toast(`The ${what} was deleted.`); context.reload(); }
};

export async function open(body, context) {
  const users = h("div"), groups = h("div"), roles = h("div");
  const manages = context.user.roles.some((role) => MANAGERS.includes(role.role));
  let drawn = "";
  fill(body, !manages ? null : h("div", { class: "buttons" }, button("Create a user…", () => editUser(null, context), { id: "create-user", class: "primary" }), button("Create a group…", () => editGroup(null, context), { id: "create-group" })),
    users, h("h2", null, "Groups"), groups, h("h2", null, "Roles"), roles);
  return {
    async refresh() {
      const told = await Promise.all([get("/settings/rbac/users"), get("/settings/rbac/groups"), get("/settings/rbac/roles")]);
      if (JSON.stringify(told) === drawn) return;
      drawn = JSON.stringify(told);
      const [allUsers, allGroups, allRoles] = told;
      fill(users, table(["User", "Full name", "Roles", "Groups", ""], allUsers.map((user) => [h("b", { class: "break" }, user.id), user.name || "", own(user), (user.groups || []).join(", "),
        !manages ? null : h("div", { class: "buttons" }, button("Edit…", () => editUser(user, context), { "data-edit": user.id }), button("Delete…", remove("user", user.id, "/settings/rbac/users/local/", context), { "data-delete": user.id }))]), "No users beside those of the configuration file."));
      fill(groups, table(["Group", "Description", "Roles", ""], allGroups.map((group) => [h("b", { class: "break" }, group.id), group.description || "", group.roles.map(roleText).join(", "),
        !manages ? null : h("div", { class: "buttons" }, button("Edit…", () => editGroup(group, context), { "data-edit-group": group.id }), button("Delete…", remove("group", group.id, "/settings/rbac/groups/", context), { "data-delete-group": group.id }))]), "No groups."));
      fill(roles, table(["Role", "Name", "Allows"], allRoles.map((role) => [h("code", null, roleText(role)), role.name, role.desc])));
    },
  };
}
