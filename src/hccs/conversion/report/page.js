"use strict";
// The page is whole without this: it sorts the heads, opens the one a link names, and copies commands.
document.documentElement.classList.add("js");
const openTarget = () => {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView({ block: "nearest" }); }
};
addEventListener("hashchange", openTarget);
openTarget();
for (const select of document.querySelectorAll("select[data-sorts]")) {
  select.addEventListener("change", () => {
    const list = document.getElementById(select.dataset.sorts);
    const [key, way] = select.value.split(" ");
    const rows = [...list.querySelectorAll(":scope > details")];
    rows.sort((a, b) => (way === "down" ? -1 : 1) * (Number(a.dataset[key]) - Number(b.dataset[key])));
    list.append(...rows);
  });
}
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre").textContent;
    const said = button.textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; }
    catch { button.textContent = "select and copy"; }
    setTimeout(() => { button.textContent = said; }, 1500);
  });
}
